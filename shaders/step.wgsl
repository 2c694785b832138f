// The step buffer: everything that changes from one step to the next. The same layout as
// `StepLayout` in crates/kernels/src/step.rs. A preamble gives LANES, ROWS and HEAD_DIM.

const NO_ID: u32 = 0xffffffffu;
const STEP_HEADER: u32 = 8u;
const STEP_LANE: u32 = 12u;
const SOFTMAX_ONE: u32 = 1u;
const ZERO_SINKS: u32 = 2u;
const STEP_ROW: u32 = 72u + HEAD_DIM;
const STEP_ROWS_AT: u32 = STEP_HEADER + LANES * STEP_LANE;

fn step_rows() -> u32 { return step[0]; }
fn step_head_first() -> u32 { return step[1]; }
fn step_head_rows() -> u32 { return step[2]; }
// The layer and the head whose probs are asked for; NO_ID where none are.
fn step_asked_layer() -> u32 { return step[3]; }
fn step_asked_head() -> u32 { return step[4]; }

fn lane_at(lane: u32) -> u32 { return STEP_HEADER + lane * STEP_LANE; }
fn lane_row0(lane: u32) -> u32 { return step[lane_at(lane)]; }
fn lane_rows(lane: u32) -> u32 { return step[lane_at(lane) + 1u]; }
fn lane_start(lane: u32) -> u32 { return step[lane_at(lane) + 2u]; }
fn lane_base(lane: u32) -> u32 { return step[lane_at(lane) + 3u]; }
fn lane_sinks(lane: u32) -> u32 { return step[lane_at(lane) + 4u]; }
fn lane_recent(lane: u32) -> u32 { return step[lane_at(lane) + 5u]; }
fn lane_first_word(lane: u32) -> u32 { return step[lane_at(lane) + 6u]; }
fn lane_store(lane: u32) -> u32 { return step[lane_at(lane) + 7u]; }
fn lane_packed(lane: u32) -> u32 { return step[lane_at(lane) + 9u]; }
fn lane_packs_to(lane: u32) -> u32 { return step[lane_at(lane) + 10u]; }
fn lane_has(lane: u32, flag: u32) -> bool { return (step[lane_at(lane) + 8u] & flag) != 0u; }
// The lane of a row; LANES where the row rests or its lane lies in another arena.
fn lane_of(row: u32, store: u32) -> u32 {
    for (var lane = 0u; lane < LANES; lane++) {
        let row0 = lane_row0(lane);
        if (row >= row0 && row - row0 < lane_rows(lane)) { return select(LANES, lane, lane_store(lane) == store); }
    }
    return LANES;
}

// Whether a row of a lane is its last, of which probs can be asked.
fn is_last(lane: u32, row: u32) -> bool { return row + 1u == lane_row0(lane) + lane_rows(lane); }

fn row_at(row: u32) -> u32 { return STEP_ROWS_AT + row * STEP_ROW; }
fn row_id(row: u32) -> u32 { return step[row_at(row)]; }
fn row_forced(row: u32) -> u32 { return step[row_at(row) + 1u]; }
fn row_index(row: u32) -> u32 { return step[row_at(row) + 2u]; }
fn row_first(row: u32) -> u32 { return step[row_at(row) + 3u]; }
fn row_sinks(row: u32) -> u32 { return step[row_at(row) + 4u]; }
fn row_held(row: u32) -> u32 { return step[row_at(row) + 5u]; }
fn row_penalty(row: u32) -> f32 { return bitcast<f32>(step[row_at(row) + 6u]); }
fn row_penalized(row: u32) -> u32 { return step[row_at(row) + 7u]; }
fn row_penalized_id(row: u32, i: u32) -> u32 { return step[row_at(row) + 8u + i]; }
// Cosine and sine of pair `i` of the query's rotation for sink keys.
fn row_sink_cos(row: u32, i: u32) -> f32 { return bitcast<f32>(step[row_at(row) + 72u + i]); }
fn row_sink_sin(row: u32, i: u32) -> f32 { return bitcast<f32>(step[row_at(row) + 72u + HEAD_DIM / 2u + i]); }
