use crate::golden::{check_logits, losses};
use crate::identities::{ROUNDING, ROUNDING_F16, median_difference};
use crate::probs;
use kernels::cache::{Bits, Float};
use kernels::step::{LaneStep, ReportLayout, StepLayout, StepWriter};
use kernels::{AttendParams, CacheFormat, FloatBuffer, Heads, Storage, WordBuffer};
use model::device::Place;
use model::session::{CacheSettings, LaneFeed, Session, Turns, Want};
use policy::{Packing, Policy, Positions};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::rc::Rc;
use tests::runs::Policies;
use tests::{Kind, Random, Tiny, golden, load, read_all, real_model};

/// One GPU a process, and tensors of one device in one thread: all of it is one test.
#[test]
fn the_gpu_agrees() {
    let _alone = tests::alone();
    let (place, adapter) = pollster::block_on(Place::gpu(None))
        .expect("a Vulkan driver is there: `apt-get install mesa-vulkan-drivers` has one that runs on the CPU");
    println!("on {} (software: {})", adapter.name, adapter.software);
    for check in pollster::block_on(kernels::self_test::run(&place.device, place.grid)) {
        println!("{:<40} {:.2e} of {:.2e}", check.name, check.error, check.tolerance);
        assert!(check.ok(), "{}", check.name);
    }
    golden_codes(&place);
    twins(&place);
    packed_twins(&place);
    lanes(&place);
    replays(&place);
    probs(&place);
    real(&place);
}

/// Random models of every format, both grids, both storages: the GPU against the CPU.
fn twins(place: &Place) {
    let mut random = Random(3);
    let tokens: Vec<u32> = (0..90).map(|_| random.below(300) as u32).collect();
    for (kind, storage, grid) in [
        (Kind::Q4_1, Storage::F16, kernels::Grid::Software),
        (Kind::Q4_0, Storage::F32, kernels::Grid::Gpu),
        (Kind::Q8_0, Storage::F32, kernels::Grid::Software),
        (Kind::F16, Storage::F16, kernels::Grid::Gpu),
        (Kind::F32, Storage::F32, kernels::Grid::Gpu),
    ] {
        let bytes = Tiny { kind, query_kind: kind, ..Tiny::default() }.gguf();
        let (cpu, _) = load(&bytes, Place::cpu()).expect("a tiny model loads");
        let (gpu, _) = load(&bytes, Place { grid: Some(grid), ..place.clone() }).expect("a tiny model loads");
        pollster::block_on(gpu.weights.verify()).expect("what was written reads back");
        for (policy, positions, chunk) in [
            (Policy::Sinks { sinks: 4, recent: 20 }, Positions::Slot, 1),
            (Policy::Sinks { sinks: 4, recent: 20 }, Positions::Stream, 33),
            (Policy::Window { recent: 70 }, Positions::Slot, 7),
            (Policy::Dense, Positions::Slot, 16),
        ] {
            let settings = CacheSettings { positions, ..CacheSettings::new(policy) }.stored_as(storage);
            let (a, a_rows) = read_all(&cpu, settings, &tokens, chunk);
            let (b, b_rows) = read_all(&gpu, settings, &tokens, chunk);
            let tolerance = if storage == Storage::F16 { ROUNDING_F16 } else { ROUNDING };
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                assert!((a - b).abs() < tolerance, "{kind:?} {grid:?} {policy:?} chunk {chunk} token {i}: {a} and {b}");
            }
            for (a, b) in a_rows.iter().zip(&b_rows) {
                let ids = |row: &model::transformer::RowReport| -> Vec<u32> {
                    row.candidates.iter().take(3).map(|(id, _)| *id).collect()
                };
                if a.candidates.windows(2).take(4).all(|pair| pair[0].1 - pair[1].1 > 0.02) {
                    assert_eq!(ids(a), ids(b));
                }
                assert_eq!(a.candidates.len(), b.candidates.len());
                for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                    assert!((a - b).abs() < 5e-3);
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    kind: String,
    shape: [usize; 2],
    x: Vec<f32>,
    #[serde(flatten)]
    packed: BTreeMap<String, Packed>,
}

#[derive(Deserialize)]
struct Packed {
    codes: Vec<u32>,
    scale_f16: Vec<u32>,
    zero_f16: Vec<u32>,
}

/// The golden file's groups, packed by the kernel: scales and zeros bit for bit, and codes too, or off by one beside the
/// border of two codes where a device's division is inexact. Sinks and tail are f32, so that values are not rounded before.
fn golden_codes(place: &Place) {
    let vectors: Vectors = golden("kivi_vectors.json");
    let (mut all, mut off) = (0, 0);
    for case in &vectors.cases {
        let [tokens, channels] = case.shape;
        for (name, expected) in &case.packed {
            let bits = match name.as_str() {
                "int8" => Bits::Eight,
                "int4" => Bits::Four,
                _ => Bits::Two,
            };
            let storage = Storage { float: Float::F32, bits: Some(bits) };
            let format = CacheFormat::new(storage, storage, 32, 32);
            let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: channels };
            let layout = format.layout(heads, 0, 32);
            let step_layout = StepLayout { lanes: 1, rows: tokens, head_dim: channels };
            let mut words = vec![0; step_layout.words()];
            let lane = LaneStep { rows: tokens as u32, recent: 32, packs_to: 32, ..LaneStep::default() };
            StepWriter::new(step_layout, &mut words).lane(0, &lane);
            let mut step = WordBuffer::zeros(words.len(), &place.device);
            step.write(words);
            let mut arena = WordBuffer::zeros(layout.words(), &place.device);
            let rows = case.x.chunks_exact(channels).flat_map(|x| [x, x, x].concat()).collect();
            let qkv = FloatBuffer::of(rows, &place.device);
            let params = AttendParams {
                heads,
                format,
                keys: 32,
                slots: 32,
                store: 0,
                layer: 0,
                step: step_layout,
                report: ReportLayout { layers: 1, heads: 1 },
                grid: place.grid.expect("a GPU has a grid"),
            };
            kernels::append(&qkv, &step, &mut arena, params);
            let words = arena.read().into_data().try_to_vec::<u32>().expect("words");
            let part = &words[if case.kind == "keys" { 0 } else { layout.group_values_at(0) }..];
            let (codes, parameters) = part.split_at(layout.code_words(storage));
            for (i, expected) in expected.codes.iter().enumerate() {
                let (word, shift) = bits.place(i);
                let code = codes[word] >> shift & bits.largest();
                assert!(code.abs_diff(*expected) <= 1, "{} {name}: code {i} is {code}, not {expected}", case.name);
                (all, off) = (all + 1, off + usize::from(code != *expected));
            }
            for (i, (scale, zero)) in expected.scale_f16.iter().zip(&expected.zero_f16).enumerate() {
                // The file has values by token, then channels.
                let groups = layout.channel_groups();
                let word = parameters[if case.kind == "keys" { i } else { i % groups * 32 + i / groups }];
                assert_eq!((word & 0xFFFF, word >> 16), (*scale, *zero), "{} {name}: scale and zero {i}", case.name);
            }
        }
    }
    println!("golden codes: {off} of {all} beside the border of two codes");
    // Division on the software adapters is exact.
    assert!(off * 10_000 <= if place.grid == Some(kernels::Grid::Software) { 0 } else { all });
}

/// Packed caches, and K and V kept apart: the GPU against the CPU, in the median, since a value beside the border of two
/// codes may get either.
fn packed_twins(place: &Place) {
    let mut random = Random(4);
    let tokens: Vec<u32> = (0..130).map(|_| random.below(300) as u32).collect();
    let bytes = Tiny::default().gguf();
    let (cpu, _) = load(&bytes, Place::cpu()).expect("a tiny model loads");
    for (keys, values, grid, policy, chunk) in [
        (Storage::INT8, Storage::INT8, kernels::Grid::Software, Policy::Sinks { sinks: 4, recent: 60 }, 1),
        (Storage::INT4, Storage::INT4, kernels::Grid::Gpu, Policy::Sinks { sinks: 4, recent: 60 }, 33),
        (Storage::INT2, Storage::INT2, kernels::Grid::Software, Policy::Sinks { sinks: 3, recent: 40 }, 16),
        (Storage::INT4, Storage::INT4, kernels::Grid::Software, Policy::Dense, 1),
        (Storage::INT2, Storage::INT8, kernels::Grid::Gpu, Policy::Window { recent: 9 }, 7),
        (Storage::F16, Storage::INT4, kernels::Grid::Gpu, Policy::Dense, 50),
        (Storage::BF16, Storage::BF16, kernels::Grid::Gpu, Policy::Sinks { sinks: 4, recent: 20 }, 7),
        (Storage::F32, Storage::F16, kernels::Grid::Software, Policy::Sinks { sinks: 4, recent: 20 }, 1),
    ] {
        let (gpu, _) = load(&bytes, Place { grid: Some(grid), ..place.clone() }).expect("a tiny model loads");
        let packing = Packing { group: 16, tail: 32, exact: 4 };
        let settings = CacheSettings { keys, values, packing, ..CacheSettings::new(policy) };
        let (a, _) = read_all(&cpu, settings, &tokens, chunk);
        let (b, _) = read_all(&gpu, settings, &tokens, chunk);
        let median = median_difference(&a, &b);
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{keys:<5} {values:<5} {grid:?} {policy:?}: median {median:.1e}, worst {worst:.1e}");
        assert!(median < ROUNDING_F16 && worst < 1.0, "{keys} {values} {grid:?} {policy:?}: {median}, {worst}");
    }
}

/// Lanes of both storages in one forward, some with ablations, one that grows: the GPU against the CPU, one token a lane
/// (soon a recording), then chunks.
fn lanes(place: &Place) {
    let bytes = Tiny { sink_logits: Some(0.7), ..Tiny::default() }.gguf();
    let sinks = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 60 });
    let settings = [
        CacheSettings { zero_sinks: true, ..sinks },
        CacheSettings::new(Policy::Dense),
        CacheSettings { positions: Positions::Stream, ..sinks }.stored_as(Storage::F32),
        CacheSettings { turns: Some(Turns { opening: 7, pinned: 9 }), ..sinks },
    ];
    let mut random = Random(5);
    let texts: Vec<Vec<u32>> = (0..4).map(|_| (0..290).map(|_| random.below(40) as u32).collect()).collect();
    let (cpu, _) = load(&bytes, Place::cpu()).expect("a tiny model loads");
    let (gpu, _) = load(&bytes, place.clone()).expect("a tiny model loads");
    let [mut on_cpu, mut on_gpu] =
        [&cpu, &gpu].map(|model| Session::with_lanes(Rc::clone(model), &settings, 120).expect("the lanes fit"));
    let mut done = 0;
    while done < 289 {
        let taken = if done < 20 { 1 } else { 30.min(289 - done) };
        let feeds: Vec<LaneFeed<'_>> = (0..4)
            .map(|lane| {
                let forced = &texts[lane][done + 1..done + 1 + taken];
                LaneFeed { lane, tokens: &texts[lane][done..done + taken], want: Want::All { forced } }
            })
            .collect();
        let [a, b] = [&mut on_cpu, &mut on_gpu].map(|on| pollster::block_on(on.feed(&feeds)).expect("fed"));
        for (lane, (a, b)) in a.iter().zip(&b).enumerate() {
            assert_eq!((a.taken, &a.evicted, &a.evicted_turns), (taken, &b.evicted, &b.evicted_turns));
            for (a, b) in a.rows.iter().zip(&b.rows) {
                let [nll, other] = [a, b].map(|row| f64::from(row.log_sum_exp) - f64::from(row.forced));
                assert!((nll - other).abs() < ROUNDING_F16, "lane {lane} after {done}: {nll} and {other}");
                for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                    assert!((a - b).abs() < 5e-3, "lane {lane} after {done}: {a} and {b}");
                }
            }
        }
        assert_eq!(on_gpu.replays(), (2..226).contains(&done), "after {done}");
        done += taken;
        if done == 20 {
            let asked = [(2, 11), (0, 12)];
            let [a, b] = [&mut on_cpu, &mut on_gpu].map(|on| pollster::block_on(on.nll_of(&asked)).expect("asked"));
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() < ROUNDING_F16 as f32, "{a} and {b}");
            }
        }
    }
}

/// The probs of another head at each step, of lanes of every kind of cache: the GPU against the CPU, by launches, by a
/// recording (in which nothing tells what is asked), and of chunks; in both grids.
fn probs(place: &Place) {
    let bytes = Tiny::default().gguf();
    let settings = probs::lanes();
    let mut random = Random(6);
    let texts: Vec<Vec<u32>> = settings.iter().map(|_| (0..200).map(|_| random.below(40) as u32).collect()).collect();
    let (cpu, _) = load(&bytes, Place::cpu()).expect("a tiny model loads");
    for grid in [kernels::Grid::Software, kernels::Grid::Gpu] {
        let (gpu, _) = load(&bytes, Place { grid: Some(grid), ..place.clone() }).expect("a tiny model loads");
        let [mut on_cpu, mut on_gpu] =
            [&cpu, &gpu].map(|model| Session::with_lanes(Rc::clone(model), &settings, 160).expect("the lanes fit"));
        let mut done = vec![0; texts.len()];
        let (mut worst, mut packed) = (0.0f32, Vec::new());
        for step in 0..30 {
            let asked = probs::ask_in_turn(step, &cpu.config);
            let take = if step < 16 { 1 } else { 20 };
            let feeds: Vec<LaneFeed<'_>> = (0..texts.len())
                .filter(|lane| lane % 8 != step % 8 && done[*lane] < texts[*lane].len())
                .map(|lane| {
                    let rest = &texts[lane][done[lane]..];
                    let want = Want::Last { penalty: 1.0, penalized: &[] };
                    LaneFeed { lane, tokens: &rest[..take.min(rest.len())], want }
                })
                .collect();
            let [a, b] = [&mut on_cpu, &mut on_gpu].map(|on| {
                on.ask(Some(asked)).expect("the head is there");
                pollster::block_on(on.feed(&feeds)).expect("fed")
            });
            assert_eq!(on_gpu.replays(), step >= 2, "step {step}");
            for (feed, (a, b)) in feeds.iter().zip(a.iter().zip(&b)) {
                done[feed.lane] += b.taken;
                let lane = feed.lane;
                let [a, b] = [(&on_cpu, a), (&on_gpu, b)].map(|(on, fed)| {
                    let lane = on.lane(lane);
                    probs::probs_of(fed, lane, lane.stream().held(), &cpu.config, asked)
                });
                let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                if settings[lane].format().packs() {
                    packed.push(f64::from(off));
                } else {
                    worst = worst.max(off);
                    assert!(off < 5e-3, "{grid:?}, lane {lane}, step {step}, {asked:?}: off by {off}");
                }
            }
        }
        // A value beside the border of two codes may get either, so in the median.
        packed.sort_by(f64::total_cmp);
        let median = packed[packed.len() / 2];
        println!("probs, {grid:?}: worst {worst:.1e}, median of packed {median:.1e}");
        assert!(median < 5e-3, "{grid:?}: {median}");
    }
}

/// Single tokens are soon read by replaying a recording, which twins() has compared with the CPU; a dense cache that grows
/// takes new buffers, and so a new recording.
fn replays(place: &Place) {
    let (model, _) = load(&Tiny::default().gguf(), place.clone()).expect("a tiny model loads");
    let settings = CacheSettings::new(Policy::Dense);
    let mut session = Session::new(model, settings, 8).expect("fits");
    let want = Want::Last { penalty: 1.0, penalized: &[] };
    for (token, replays) in [(0, false), (1, false), (2, true), (100, true), (255, true), (256, false), (260, true)] {
        while session.stream().fed() <= token {
            pollster::block_on(session.feed_one(&[7], want)).expect("fed");
        }
        assert_eq!(session.replays(), replays, "after token {token}");
    }
}

/// The real model: logits, and the first 256 tokens of every run in full precision.
fn real(place: &Place) {
    let (model, _) = real_model(place.clone());
    check_logits(&model);
    let policies: Policies = golden("policies.json");
    let tokens = &policies.tokens[..257];
    println!("{:<14} {:>10}", "run", "worst");
    for (name, settings, run) in policies.full_precision() {
        let (nll, _) = read_all(&Rc::clone(&model), settings, tokens, 64);
        let worst = nll.iter().zip(losses(name, run)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{name:<14} {worst:>10.2e}");
        assert!(worst <= 4e-3, "{name}: {worst}");
    }
    let (name, settings, ..) = policies.packed().into_iter().find(|run| run.0 == "int4_4_252").expect("an int4 run");
    let (cpu, _) = real_model(Place::cpu());
    let [gpu, cpu] = [&model, &cpu].map(|model| read_all(model, settings, &tokens[..129], 64).0);
    let median = median_difference(&gpu, &cpu);
    println!("{name:<14} {median:>10.2e} (median, against the CPU)");
    assert!(median <= 4e-3, "{name}: {median}");
}
