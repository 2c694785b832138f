// A curve over the stream that never takes more than a fixed room, however long the stream gets.

/** Some neighbouring positions of the stream, summed up. */
export interface Bin {
  /** Stream position of the first and of the last value in the bin. */
  first: number;
  last: number;
  count: number;
  sum: number;
  min: number;
  max: number;
}

/** Most bins of a series. */
export const MOST_BINS = 2048;
/** Numbers of a bin. */
const FIELDS = 6;
/** Bins that a series has room for at first. */
const FIRST_ROOM = 64;

/** Bins lie one after the other in an array of numbers, since an object for each takes twice the room, and a run has many. */
export class Series {
  /**
   * `width`: stream positions that share a bin, which doubles when there would be too many bins. `length`: number of bins.
   */
  constructor(
    readonly width: number,
    readonly length: number,
    private readonly numbers: Float64Array,
  ) {}

  /** A copy of the `k`th bin; undefined where there is none. */
  at(k: number): Bin | undefined {
    if (k < 0 || k >= this.length) return undefined;
    const [first = 0, last = 0, count = 0, sum = 0, min = 0, max = 0] = this.numbers.subarray(k * FIELDS, (k + 1) * FIELDS);
    return { first, last, count, sum, min, max };
  }

  get last(): Bin | undefined {
    return this.at(this.length - 1);
  }

  /** A copy of all bins, in the order of the stream. */
  get bins(): Bin[] {
    return Array.from({ length: this.length }, (_, k) => this.at(k) as Bin);
  }

  /**
   * The series with `value` at stream position `at`, which may not be smaller than the last one. The room of the series
   * before is used again, so that a token costs no copy: only the newest series is to be read.
   */
  push(at: number, value: number): Series {
    let series = this.add({ first: at, last: at, count: 1, sum: value, min: value, max: value });
    // Where values are far apart, twice the width may not be enough.
    while (series.length > MOST_BINS) {
      const wider = new Series(2 * series.width, 0, series.numbers);
      series = series.bins.reduce((joint, bin) => joint.add(bin), wider);
    }
    return series;
  }

  private add(next: Bin): Series {
    const { last, length, width } = this;
    return last !== undefined && together(last, next, width) ? this.with(length - 1, joined(last, next)) : this.with(length, next);
  }

  /** With `bin` as the `k`th and last one. */
  private with(k: number, { first, last, count, sum, min, max }: Bin): Series {
    let { numbers } = this;
    if ((k + 1) * FIELDS > numbers.length) {
      numbers = new Float64Array(Math.min(MOST_BINS + 1, Math.max(FIRST_ROOM, 2 * k)) * FIELDS);
      numbers.set(this.numbers);
    }
    numbers.set([first, last, count, sum, min, max], k * FIELDS);
    return new Series(this.width, k + 1, numbers);
  }
}

export const EMPTY = new Series(1, 0, new Float64Array());

export function mean(bin: Bin): number {
  return bin.sum / bin.count;
}

/** Puts `next` at the end of `bins`, into the last bin where both lie in the same `width` positions. */
export function add(bins: Bin[], next: Bin, width: number): void {
  const last = bins.at(-1);
  if (last === undefined || !together(last, next, width)) bins.push(next);
  else bins[bins.length - 1] = joined(last, next);
}

const together = (a: Bin, b: Bin, width: number): boolean => Math.floor(a.first / width) === Math.floor(b.first / width);

const joined = (a: Bin, b: Bin): Bin => ({
  first: a.first,
  last: b.last,
  count: a.count + b.count,
  sum: a.sum + b.sum,
  min: Math.min(a.min, b.min),
  max: Math.max(a.max, b.max),
});
