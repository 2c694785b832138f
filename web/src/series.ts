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

export interface Series {
  /** Stream positions that share a bin. Doubles when there would be too many bins. */
  width: number;
  bins: Bin[];
}

/** Most bins of a series. */
export const MOST_BINS = 2048;

export const EMPTY: Series = { width: 1, bins: [] };

export function mean(bin: Bin): number {
  return bin.sum / bin.count;
}

/**
 * The series with `value` at stream position `at`, which may not be smaller than the last one. The bins of the series
 * before are used again, so that a token costs no copy: only the newest series is to be read.
 */
export function push(series: Series, at: number, value: number): Series {
  let { width } = series;
  let bins: Bin[] = series.bins.length === 0 ? [] : series.bins;
  add(bins, { first: at, last: at, count: 1, sum: value, min: value, max: value }, width);
  while (bins.length > MOST_BINS) {
    width *= 2;
    const fewer: Bin[] = [];
    for (const bin of bins) add(fewer, bin, width);
    bins = fewer;
  }
  return { width, bins };
}

/** Puts `next` at the end of `bins`, into the last bin where both lie in the same `width` positions. */
export function add(bins: Bin[], next: Bin, width: number): void {
  const last = bins.at(-1);
  if (last === undefined || Math.floor(last.first / width) !== Math.floor(next.first / width)) {
    bins.push(next);
    return;
  }
  bins[bins.length - 1] = {
    first: last.first,
    last: next.last,
    count: last.count + next.count,
    sum: last.sum + next.sum,
    min: Math.min(last.min, next.min),
    max: Math.max(last.max, next.max),
  };
}
