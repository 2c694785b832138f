//! The step buffer: all that changes from one forward to the next, in one small buffer of u32
//! words, so that everything else can be recorded once and replayed. And the report buffer, f32,
//! in which a forward answers.
//!
//! The step buffer holds [`GLOBAL_WORDS`] words, then [`LANE_WORDS`] a lane, then
//! [`StepLayout::row_words`] a row. The report buffer holds [`ReportLayout::stride`] values a row.

/// Words of the global header: rows in use, first row of the head, rows of the head, layer and query head whose probs are
/// asked for ([`NO_ID`] twice where none are), 3 unused.
pub const GLOBAL_WORDS: usize = 8;
/// Words of a lane: the fields of [`LaneStep`] in order, 1 unused.
pub const LANE_WORDS: usize = 12;
/// Flag of a lane: the denominator has one more logit, which is 0, in place of what the weights have learned.
pub const SOFTMAX_ONE: u32 = 1;
/// Flag of a lane: sinks take attention, but their values count as zeros.
pub const ZERO_SINKS: u32 = 2;
/// Offset of a row's penalty ids, after eight scalar words.
pub const PENALTY_AT: usize = 8;
/// The most ids that a row can penalize.
pub const MAX_PENALTIES: usize = 64;
/// Offset of a row's query rotation: cosines, then sines.
pub const ROTATION_AT: usize = PENALTY_AT + MAX_PENALTIES;
/// The forced id of a row that forces none; the layer and the head of a step that is asked for no probs.
pub const NO_ID: u32 = u32::MAX;

/// Where things lie in a step buffer. Fixed for a session: `rows` is the most a forward takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepLayout {
    /// Streams that share a forward.
    pub lanes: usize,
    /// The most rows of a forward, over all lanes.
    pub rows: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl StepLayout {
    /// Words of the whole buffer.
    pub const fn words(&self) -> usize {
        self.row_at(self.rows)
    }

    /// Words of a row.
    pub const fn row_words(&self) -> usize {
        ROTATION_AT + self.head_dim
    }

    /// Offset of a lane.
    pub const fn lane_at(&self, lane: usize) -> usize {
        GLOBAL_WORDS + lane * LANE_WORDS
    }

    /// Offset of a row.
    pub const fn row_at(&self, row: usize) -> usize {
        self.lane_at(self.lanes) + row * self.row_words()
    }
}

/// A query head of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerHead {
    pub layer: usize,
    pub head: usize,
}

/// What a lane does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStep {
    /// The lane's first row in the forward.
    pub row0: u32,
    /// The lane's rows in the forward; 0 where it rests.
    pub rows: u32,
    /// Stream index of the lane's first row. Older keys are in the arena.
    pub start: u32,
    /// Stream index from which the angles of recent keys are counted.
    pub base: u32,
    /// S, the slots of sinks.
    pub sinks: u32,
    /// R, the recent tokens that there is room for.
    pub recent: u32,
    /// The first word of the lane's part of its arena.
    pub at: u32,
    /// The arena that holds the lane: lanes that store their values alike share one, and a kernel serves one.
    pub store: u32,
    /// [`SOFTMAX_ONE`] and [`ZERO_SINKS`].
    pub flags: u32,
    /// The tokens below this stream index that are no sinks are packed for every row of the lane.
    pub packed: u32,
    /// The same once the step is done: what lies between the two is then in the tail, whole groups of it, and is packed.
    pub packs_to: u32,
}

/// What a row does in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStep<'a> {
    /// The token that is read.
    pub token: u32,
    /// The token whose logit is wanted, if any.
    pub forced: Option<u32>,
    /// Stream index of the row.
    pub index: u32,
    /// The oldest recent stream index that the row's query sees.
    pub first: u32,
    /// Sinks that the query sees.
    pub sinks_held: u32,
    /// Keys that the query sees in all, its own included.
    pub held: u32,
    /// Repetition penalty; 1 changes nothing.
    pub penalty: f32,
    /// The distinct ids that are penalized, at most [`MAX_PENALTIES`].
    pub penalty_ids: &'a [u32],
    /// Cosines of the query's rotation for sink keys, `head_dim / 2` of them.
    pub cos: &'a [f32],
    /// Sines of the query's rotation for sink keys, `head_dim / 2` of them.
    pub sin: &'a [f32],
}

/// Writes a step buffer.
pub struct StepWriter<'a> {
    layout: StepLayout,
    words: &'a mut [u32],
}

impl<'a> StepWriter<'a> {
    /// Starts a step: all words become zero, and no probs are asked for.
    ///
    /// # Panics
    /// If the buffer is not [`StepLayout::words`] long.
    pub fn new(layout: StepLayout, words: &'a mut [u32]) -> Self {
        assert_eq!(words.len(), layout.words(), "the step buffer's length");
        words.fill(0);
        words[3..5].fill(NO_ID);
        StepWriter { layout, words }
    }

    /// Changes a step that was written: all words stay.
    ///
    /// # Panics
    /// If the buffer is not [`StepLayout::words`] long.
    pub fn reopen(layout: StepLayout, words: &'a mut [u32]) -> Self {
        assert_eq!(words.len(), layout.words(), "the step buffer's length");
        StepWriter { layout, words }
    }

    /// Sets the token whose logit is wanted of a row.
    ///
    /// # Panics
    /// If the layout has no such row.
    pub fn force(&mut self, row: usize, id: u32) {
        assert!(row < self.layout.rows, "row {row} of {}", self.layout.rows);
        self.words[self.layout.row_at(row) + 1] = id;
    }

    /// Sets the rows in use and the range of rows for which logits are wanted.
    ///
    /// # Panics
    /// If the rows do not fit the layout or the head's rows are outside them.
    pub fn global(&mut self, rows: usize, head_first: usize, head_rows: usize) {
        assert!(rows <= self.layout.rows, "{rows} rows in a step of {}", self.layout.rows);
        assert!(head_first + head_rows <= rows, "the head's rows are rows of the step");
        self.words[0] = rows as u32;
        self.words[1] = head_first as u32;
        self.words[2] = head_rows as u32;
    }

    /// Asks for the probs of one head of one layer, of each lane's last row.
    pub fn ask(&mut self, LayerHead { layer, head }: LayerHead) {
        self.words[3] = layer as u32;
        self.words[4] = head as u32;
    }

    /// Sets a lane.
    ///
    /// # Panics
    /// If the layout has no such lane.
    pub fn lane(&mut self, lane: usize, step: &LaneStep) {
        assert!(lane < self.layout.lanes, "lane {lane} of {}", self.layout.lanes);
        let LaneStep { row0, rows, start, base, sinks, recent, at: first_word, store, flags, packed, packs_to } = *step;
        let words = [row0, rows, start, base, sinks, recent, first_word, store, flags, packed, packs_to];
        let at = self.layout.lane_at(lane);
        self.words[at..at + words.len()].copy_from_slice(&words);
    }

    /// Sets a row.
    ///
    /// # Panics
    /// If the layout has no such row, there are too many penalty ids, or the rotation is not
    /// `head_dim / 2` long.
    pub fn row(&mut self, row: usize, step: &RowStep<'_>) {
        assert!(row < self.layout.rows, "row {row} of {}", self.layout.rows);
        assert!(step.penalty_ids.len() <= MAX_PENALTIES, "at most {MAX_PENALTIES} penalty ids");
        let half = self.layout.head_dim / 2;
        assert!(step.cos.len() == half && step.sin.len() == half, "a rotation has {half} angles");
        let at = self.layout.row_at(row);
        let words = &mut self.words[at..at + self.layout.row_words()];
        words[..PENALTY_AT].copy_from_slice(&[
            step.token,
            step.forced.unwrap_or(NO_ID),
            step.index,
            step.first,
            step.sinks_held,
            step.held,
            step.penalty.to_bits(),
            step.penalty_ids.len() as u32,
        ]);
        words[PENALTY_AT..][..step.penalty_ids.len()].copy_from_slice(step.penalty_ids);
        let angles = step.cos.iter().chain(step.sin);
        for (word, angle) in words[ROTATION_AT..].iter_mut().zip(angles) {
            *word = angle.to_bits();
        }
    }
}

/// Reads a step buffer.
#[derive(Clone, Copy, Debug)]
pub struct StepView<'a> {
    layout: StepLayout,
    words: &'a [u32],
}

impl<'a> StepView<'a> {
    /// A view of a step buffer.
    ///
    /// # Panics
    /// If the buffer is not [`StepLayout::words`] long.
    pub fn new(layout: StepLayout, words: &'a [u32]) -> Self {
        assert_eq!(words.len(), layout.words(), "the step buffer's length");
        StepView { layout, words }
    }

    /// Where things lie.
    pub fn layout(&self) -> StepLayout {
        self.layout
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.words[0] as usize
    }

    /// The first row for which logits are wanted.
    pub fn head_first(&self) -> usize {
        self.words[1] as usize
    }

    /// Rows for which logits are wanted.
    pub fn head_rows(&self) -> usize {
        self.words[2] as usize
    }

    /// The layer and head whose probs are asked for.
    pub fn asked(&self) -> Option<LayerHead> {
        let [layer, head] = [self.words[3], self.words[4]];
        (layer != NO_ID).then_some(LayerHead { layer: layer as usize, head: head as usize })
    }

    /// A lane.
    pub fn lane(&self, lane: usize) -> LaneStep {
        let at = self.layout.lane_at(lane);
        let words = &self.words[at..at + LANE_WORDS];
        LaneStep {
            row0: words[0],
            rows: words[1],
            start: words[2],
            base: words[3],
            sinks: words[4],
            recent: words[5],
            at: words[6],
            store: words[7],
            flags: words[8],
            packed: words[9],
            packs_to: words[10],
        }
    }

    /// The lanes that have rows and keep their cache in arena `store`, and their numbers.
    pub fn lanes_of(&self, store: u32) -> impl Iterator<Item = (usize, LaneStep)> {
        let lanes = (0..self.layout.lanes).map(|number| (number, self.lane(number)));
        lanes.filter(move |(_, lane)| lane.rows > 0 && lane.store == store)
    }

    /// A row.
    pub fn row(&self, row: usize) -> RowStep<'a> {
        let at = self.layout.row_at(row);
        let words = &self.words[at..at + self.layout.row_words()];
        let (cos, sin) = bytemuck::cast_slice(&words[ROTATION_AT..]).split_at(self.layout.head_dim / 2);
        RowStep {
            token: words[0],
            forced: (words[1] != NO_ID).then_some(words[1]),
            index: words[2],
            first: words[3],
            sinks_held: words[4],
            held: words[5],
            penalty: f32::from_bits(words[6]),
            penalty_ids: &words[PENALTY_AT..][..(words[7] as usize).min(MAX_PENALTIES)],
            cos,
            sin,
        }
    }
}

/// Candidates that the head reports.
pub const TOP: usize = 64;
/// Offset of the log-sum-exp of a row's logits.
pub const LOG_SUM_EXP_AT: usize = 0;
/// Offset of the forced id's logit; 0 where none is forced.
pub const FORCED_AT: usize = 1;
/// Offset of the ids of the best candidates, best first; -1 where the vocabulary has fewer.
pub const TOP_IDS_AT: usize = 2;
/// Offset of the candidates' logits after the penalty; -inf where the vocabulary has fewer.
pub const TOP_LOGITS_AT: usize = TOP_IDS_AT + TOP;
/// Offset of the attention masses: for each layer and head, that on the sinks and that on the
/// first four keys.
pub const MASSES_AT: usize = TOP_LOGITS_AT + TOP;
/// Keys that the second attention mass counts.
pub const FIRST_KEYS: usize = 4;

/// Where things lie in a row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReportLayout {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
}

impl ReportLayout {
    /// Values of a row.
    pub const fn stride(&self) -> usize {
        self.mass_at(self.layers, 0)
    }

    /// Offset, in a row, of the sink mass of a layer and head; the first-keys mass follows it.
    pub const fn mass_at(&self, layer: usize, head: usize) -> usize {
        MASSES_AT + (layer * self.heads + head) * 2
    }
}
