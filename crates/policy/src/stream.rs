//! The life of one cache: what each token sees, and where it is put.

use crate::{Packing, Policy};
use std::collections::VecDeque;
use std::ops::Range;

/// What one query sees: the sinks `0..sinks`, then the recent tokens `first..=index` that are not sinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The query's own stream index.
    pub index: u64,
    /// The oldest recent stream index that it sees; never below the number of sinks.
    pub first: u64,
    /// The sinks that it sees: fewer than the policy's while those are being read.
    pub sinks: u32,
    /// The keys that it sees in all, its own included.
    pub held: u32,
    /// The tokens below this stream index that are no sinks are packed for it; never below the number of sinks, and
    /// equal to it where nothing is packed.
    pub packed: u64,
    /// What left the cache to make room for it.
    pub evicted: Option<Range<u64>>,
    /// The turns whose last token left with it, numbered from 0 since the last reset; none where turns do not count.
    pub evicted_turns: Option<Range<u64>>,
}

/// The tokens of one forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The stream index of the first token.
    pub start: u64,
    /// The oldest recent stream index that any token of the chunk sees; angles of recent keys count from it.
    pub base: u64,
    /// One view a token.
    pub views: Vec<View>,
}

/// One stream and the cache behind it.
#[derive(Clone, Debug)]
pub struct Stream {
    policy: Policy,
    /// Tokens that never leave and are never packed.
    sinks: u32,
    /// Places of the tail, where tokens are packed.
    tail: Option<u32>,
    fed: u64,
    /// The oldest token that is kept besides the sinks; never below their number.
    first: u64,
    turns: Option<Turns>,
}

/// Where turns begin, of those that something is kept of.
#[derive(Clone, Debug, Default)]
struct Turns {
    starts: VecDeque<u64>,
    /// Turns that began before the first of `starts`.
    begun: u64,
}

impl Stream {
    /// An empty cache.
    pub fn new(policy: Policy) -> Self {
        let sinks = policy.sinks();
        Self { policy, sinks, tail: None, fed: 0, first: u64::from(sinks), turns: None }
    }

    /// The same cache with its older tokens packed: whenever the tail is full, all of it is packed at once. The first
    /// tokens of a dense cache that are kept exact count as sinks.
    pub fn packing(self, packing: Packing) -> Self {
        let sinks = if self.policy == Policy::Dense { packing.exact } else { self.sinks };
        Self { sinks, tail: Some(packing.tail), first: self.first.max(u64::from(sinks)), ..self }
    }

    /// An empty cache that makes room by whole turns: the range that leaves grows to the next turn's first token, if that
    /// has been read; where no turn begins behind what must leave, tokens leave one by one.
    pub fn by_turns(policy: Policy) -> Self {
        Self { turns: Some(Turns::default()), ..Self::new(policy) }
    }

    /// As if `fed` tokens of no turn had been read.
    pub fn jump(&mut self, fed: u64) {
        self.fed = fed;
        self.first = self.needed().max(u64::from(self.sinks));
        self.turns = self.turns.as_ref().map(|_| Turns::default());
    }

    /// The oldest token for which there is room.
    fn needed(&self) -> u64 {
        self.policy.recent().map_or(0, |recent| self.fed.saturating_sub(u64::from(recent)))
    }

    /// The rule it follows.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Tokens read so far.
    pub fn fed(&self) -> u64 {
        self.fed
    }

    /// Tokens that never leave and are never packed.
    pub fn sinks(&self) -> u32 {
        self.sinks
    }

    /// Slots in use.
    pub fn held(&self) -> u64 {
        self.fed.min(u64::from(self.sinks)) + self.fed.saturating_sub(self.first)
    }

    /// The tokens below this stream index that are no sinks are packed; never below the number of sinks.
    pub fn packed(&self) -> u64 {
        let sinks = u64::from(self.sinks);
        let tail = self.tail.map(u64::from);
        sinks + tail.map_or(0, |tail| self.fed.saturating_sub(sinks) / tail * tail)
    }

    /// Tokens until the tail is full and packed; none where nothing is packed.
    pub fn until_packed(&self) -> Option<u64> {
        self.tail.map(|tail| self.packed() + u64::from(tail) - self.fed)
    }

    /// Reads `tokens` more and says what each of them sees. A chunk gives every token the view it would have had alone.
    pub fn feed(&mut self, tokens: u32) -> Chunk {
        self.feed_turns(tokens, |_| false)
    }

    /// The same where the token `i` of the chunk begins a turn if `begins(i)`. Only a cache [by turns](Self::by_turns)
    /// makes use of it.
    pub fn feed_turns(&mut self, tokens: u32, begins: impl Fn(usize) -> bool) -> Chunk {
        let start = self.fed;
        let views: Vec<View> = (0..tokens as usize).map(|i| self.read(begins(i))).collect();
        let base = views.first().map_or(self.first, |view| view.first);
        Chunk { start, base, views }
    }

    fn read(&mut self, begins_turn: bool) -> View {
        let index = self.fed;
        let packed = self.packed();
        self.fed += 1;
        let sinks = u64::from(self.sinks);
        let before = self.first;
        let needed = self.needed();
        let mut evicted_turns = None;
        if let Some(turns) = &mut self.turns {
            if begins_turn {
                turns.starts.push_back(index);
            }
            if needed > before {
                let next = turns.starts.iter().find(|start| **start >= needed);
                self.first = next.copied().unwrap_or(needed);
                evicted_turns = turns.pass(before, self.first);
            }
        } else {
            self.first = needed.max(before);
        }
        let seen_sinks = sinks.min(self.fed);
        let recent = self.fed.saturating_sub(self.first);
        View {
            index,
            first: self.first,
            sinks: narrow(seen_sinks),
            held: narrow(seen_sinks + recent),
            packed,
            evicted: (self.first > before).then_some(before..self.first),
            evicted_turns,
        }
    }
}

impl Turns {
    /// Forgets the turns of which nothing is kept once the oldest token is `to` instead of `from`, and says which ended in
    /// between. A turn ends where the next begins.
    fn pass(&mut self, from: u64, to: u64) -> Option<Range<u64>> {
        let mut ended: Option<Range<u64>> = None;
        while self.starts.front().is_some_and(|start| *start <= to) {
            if self.starts.pop_front() > Some(from) && self.begun > 0 {
                let first = ended.map_or(self.begun - 1, |turns| turns.start);
                ended = Some(first..self.begun);
            }
            self.begun += 1;
        }
        ended
    }
}

/// Counts of slots fit into 32 bits: a dense cache stops long before.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyError;
    use proptest::prelude::*;

    /// The rule as one would say it: a list of tokens, from which the oldest that is not a sink leaves; by turns, all
    /// before the next turn that has begun leave with it.
    struct List {
        policy: Policy,
        kept: Vec<u64>,
        fed: u64,
        /// Tokens that began a turn.
        starts: Vec<u64>,
    }

    impl List {
        fn new(policy: Policy) -> Self {
            Self { policy, kept: Vec::new(), fed: 0, starts: Vec::new() }
        }

        fn read(&mut self, begins_turn: bool) -> Option<Range<u64>> {
            if begins_turn {
                self.starts.push(self.fed);
            }
            self.kept.push(self.fed);
            self.fed += 1;
            let sinks = self.policy.sinks() as usize;
            if self.policy.capacity().is_none_or(|capacity| self.kept.len() as u64 <= capacity) {
                return None;
            }
            let first = self.kept.remove(sinks);
            let mut last = first;
            let after = |token: &u64| self.kept[sinks..].contains(token);
            if self.starts.iter().any(after) {
                while !self.starts.contains(&self.kept[sinks]) {
                    last = self.kept.remove(sinks);
                }
            }
            Some(first..last + 1)
        }

        /// The number of the turn after the last that has left: that of the oldest token, if anything between it and the
        /// sinks was another's.
        fn turns_left(&self) -> u64 {
            let sinks = u64::from(self.policy.sinks());
            let oldest = self.kept[sinks as usize];
            let mut starts = self.starts.iter().enumerate();
            starts.rfind(|(_, start)| sinks < **start && **start <= oldest).map_or(0, |(number, _)| number as u64)
        }
    }

    fn seen(view: &View) -> Vec<u64> {
        (0..u64::from(view.sinks)).chain(view.first..view.index + 1).collect()
    }

    fn check(policy: Policy, chunks: &[u32]) {
        let mut list = List::new(policy);
        let mut stream = Stream::new(policy);
        for &tokens in chunks {
            let chunk = stream.feed(tokens);
            assert_eq!(chunk.start, list.fed);
            for view in &chunk.views {
                let left = list.read(false);
                assert_eq!(seen(view), list.kept, "{policy:?} at {}", view.index);
                assert_eq!(view.held as usize, list.kept.len());
                assert_eq!(view.evicted, left);
                assert_eq!(view.evicted_turns, None);
                assert!(view.first >= chunk.base);
            }
            assert_eq!(stream.held(), list.kept.len() as u64);
        }
    }

    #[test]
    fn every_small_cache_keeps_what_the_list_keeps() {
        for recent in 1..=5 {
            check(Policy::Window { recent }, &[1; 16]);
            for sinks in 0..=4 {
                let policy = Policy::Sinks { sinks, recent };
                for chunk in 1..=16 {
                    check(policy, &vec![chunk; 16usize.div_ceil(chunk as usize)]);
                }
            }
        }
        check(Policy::Dense, &[1; 16]);
        check(Policy::Dense, &[5, 1, 10]);
    }

    /// Whole lives: the slots' tokens after each step, sinks before the bar.
    #[test]
    fn lives() {
        let cases: &[(Policy, &[&str])] = &[
            (
                Policy::Sinks { sinks: 2, recent: 3 },
                &["0|", "0 1|", "0 1|2", "0 1|2 3", "0 1|2 3 4", "0 1|3 4 5", "0 1|4 5 6", "0 1|5 6 7"],
            ),
            (Policy::Sinks { sinks: 1, recent: 1 }, &["0|", "0|1", "0|2", "0|3"]),
            (Policy::Window { recent: 3 }, &["|0", "|0 1", "|0 1 2", "|1 2 3", "|2 3 4"]),
            (Policy::Window { recent: 1 }, &["|0", "|1", "|2"]),
            (Policy::Dense, &["|0", "|0 1", "|0 1 2", "|0 1 2 3"]),
            (Policy::Recompute { recent: 2 }, &["|0", "|0 1", "|1 2", "|2 3"]),
        ];
        for (policy, life) in cases {
            let mut stream = Stream::new(*policy);
            for expected in *life {
                let chunk = stream.feed(1);
                let words = |range: Range<u64>| range.map(|t| t.to_string()).collect::<Vec<_>>().join(" ");
                let view = &chunk.views[0];
                let shown = format!("{}|{}", words(0..u64::from(view.sinks)), words(view.first..view.index + 1));
                assert_eq!(&shown, expected, "{policy:?}");
            }
        }
    }

    /// Whole lives by turns: the first token of a turn has a star, what left and which turns ended stand behind the slots.
    #[test]
    fn lives_by_turns() {
        let cases: &[(Policy, &[&str])] = &[
            // A turn of the sinks, then turns of three, two and four tokens: the last is longer than the ring.
            (
                Policy::Sinks { sinks: 2, recent: 4 },
                &[
                    "0*|",
                    "0 1|",
                    "0 1|2*",
                    "0 1|2 3",
                    "0 1|2 3 4",
                    "0 1|2 3 4 5*",
                    "0 1|5 6 -2..5 turns 1..2",
                    "0 1|5 6 7*",
                    "0 1|5 6 7 8",
                    "0 1|7 8 9 -5..7 turns 2..3",
                    "0 1|7 8 9 10",
                    "0 1|8 9 10 11 -7..8",
                    "0 1|12* -8..12 turns 3..4",
                    "0 1|12 13*",
                ],
            ),
            // Turns shorter than what must leave, a turn that begins where it must, and one that begins with the token
            // that needs the room.
            (
                Policy::Window { recent: 3 },
                &[
                    "|0*",
                    "|0 1*",
                    "|0 1 2",
                    "|1 2 3 -0..1 turns 0..1",
                    "|4* -1..4 turns 1..2",
                    "|4 5*",
                    "|4 5 6*",
                    "|5 6 7* -4..5 turns 2..3",
                ],
            ),
            // No turn ever begins.
            (Policy::Sinks { sinks: 1, recent: 2 }, &["0|", "0|1", "0|1 2", "0|2 3 -1..2", "0|3 4 -2..3"]),
            // The text before the first turn is no turn; the turn that the sinks cut ends when the rest of it leaves.
            (
                Policy::Sinks { sinks: 2, recent: 3 },
                &["0|", "0 1*|", "0 1|2", "0 1|2 3*", "0 1|2 3 4", "0 1|3 4 5 -2..3 turns 0..1", "0 1|4 5 6 -3..4"],
            ),
        ];
        for (policy, life) in cases {
            let starts: Vec<bool> = life.iter().map(|step| step.split(" -").next().unwrap().contains('*')).collect();
            for chunk in 1..=life.len() {
                let mut stream = Stream::by_turns(*policy);
                let mut views = Vec::new();
                for starts in starts.chunks(chunk) {
                    views.extend(stream.feed_turns(starts.len() as u32, |i| starts[i]).views);
                }
                for (view, expected) in views.iter().zip(*life) {
                    let words = |range: Range<u64>| range.map(|t| t.to_string()).collect::<Vec<_>>().join(" ");
                    let mut shown =
                        format!("{}|{}", words(0..u64::from(view.sinks)), words(view.first..view.index + 1));
                    if let Some(range) = &view.evicted {
                        shown += &format!(" -{range:?}");
                    }
                    if let Some(range) = &view.evicted_turns {
                        shown += &format!(" turns {range:?}");
                    }
                    assert_eq!(shown, expected.replace('*', ""), "{policy:?} by {chunk}");
                }
            }
        }
    }

    #[test]
    fn too_much_is_refused() {
        let recompute = |recent| Policy::Recompute { recent }.check(100);
        assert_eq!(recompute(100), Ok(()));
        let error = recompute(101).unwrap_err().to_string();
        assert!(error.contains("recompute") && error.contains("101") && error.contains("at most 100"), "{error}");
        assert_eq!(recompute(0), Err(PolicyError::NoRecent));
        let sinks = |sinks, recent| Policy::Sinks { sinks, recent }.check(100);
        assert_eq!(sinks(4, 96), Ok(()));
        assert_eq!(sinks(4, 97), Err(PolicyError::TooLong { capacity: 101, trained_length: 100 }));
        assert_eq!(sinks(4, 0), Err(PolicyError::NoRecent));
    }

    #[test]
    fn a_window_is_no_sinks() {
        for recent in 1..=6 {
            let mut window = Stream::new(Policy::Window { recent });
            let mut sinks = Stream::new(Policy::Sinks { sinks: 0, recent });
            assert_eq!(window.feed(20), sinks.feed(20));
        }
    }

    #[test]
    fn sinks_are_dense_until_full() {
        let mut dense = Stream::new(Policy::Dense);
        let mut sinks = Stream::new(Policy::Sinks { sinks: 4, recent: 8 });
        for (a, b) in dense.feed(12).views.iter().zip(&sinks.feed(12).views) {
            assert_eq!(seen(a), seen(b));
        }
        assert_ne!(seen(&dense.feed(1).views[0]), seen(&sinks.feed(1).views[0]));
    }

    proptest! {
        #[test]
        fn a_chunk_equals_its_tokens(sinks in 0u32..6, recent in 1u32..20, chunks in prop::collection::vec(1u32..30, 1..12)) {
            let policy = Policy::Sinks { sinks, recent };
            let mut whole = Stream::new(policy);
            let mut single = Stream::new(policy);
            for tokens in chunks {
                let chunk = whole.feed(tokens);
                for view in chunk.views {
                    prop_assert_eq!(&view, &single.feed(1).views[0]);
                }
            }
        }

        #[test]
        fn by_turns_it_keeps_what_the_list_keeps(
            sinks in 0u32..6,
            recent in 1u32..20,
            turns in prop::collection::vec(1u64..12, 1..30),
            before in 0u64..5,
            chunk in 1usize..40,
        ) {
            let policy = Policy::Sinks { sinks, recent };
            let mut starts = vec![false; before as usize];
            for turn in turns {
                starts.extend((0..turn).map(|i| i == 0));
            }
            let mut stream = Stream::by_turns(policy);
            let mut list = List::new(policy);
            let mut turns_left = 0;
            for starts in starts.chunks(chunk) {
                let chunk = stream.feed_turns(starts.len() as u32, |i| starts[i]);
                for (view, begins) in chunk.views.iter().zip(starts) {
                    let left = list.read(*begins);
                    prop_assert_eq!(&seen(view), &list.kept);
                    prop_assert_eq!(view.held as usize, list.kept.len());
                    prop_assert_eq!(&view.evicted, &left);
                    prop_assert!(view.first >= chunk.base);
                    prop_assert!(u64::from(view.held) <= policy.capacity().unwrap());
                    if let Some(range) = &view.evicted_turns {
                        prop_assert!(left.is_some() && !range.is_empty());
                        turns_left = range.end;
                    }
                    if left.is_some() {
                        prop_assert_eq!(turns_left, list.turns_left());
                    }
                }
                prop_assert_eq!(stream.held(), list.kept.len() as u64);
            }
        }

        #[test]
        fn packing_keeps_what_the_list_keeps(
            sinks in 0u32..6,
            recent in prop::option::of(1u32..60),
            groups in 1u32..4,
            tails in 1u32..4,
            chunks in prop::collection::vec(1u32..50, 1..12),
        ) {
            let packing = Packing { group: 8 * groups, tail: 8 * groups * tails, exact: sinks };
            let policy = recent.map_or(Policy::Dense, |recent| Policy::Sinks { sinks, recent });
            let mut plain = Stream::new(policy);
            let mut stream = Stream::new(policy).packing(packing);
            prop_assert_eq!(stream.sinks(), sinks);
            // The tail as a list, and all that was ever packed.
            let (mut tail, mut packed) = (Vec::new(), Vec::new());
            for tokens in chunks {
                for view in stream.feed(tokens).views {
                    tail.extend((view.index >= u64::from(sinks)).then_some(view.index));
                    let seen: Vec<u64> = (u64::from(sinks)..view.packed).collect();
                    prop_assert_eq!(&seen, &packed);
                    prop_assert_eq!(tail.first().copied().unwrap_or(view.packed), view.packed);
                    if tail.len() == packing.tail as usize {
                        packed.append(&mut tail);
                    }
                    // What is seen does not depend on how it is kept.
                    let other = plain.feed(1).views.remove(0);
                    prop_assert_eq!((view.index, view.held, view.evicted), (other.index, other.held, other.evicted));
                    if recent.is_some() {
                        prop_assert_eq!((view.first, view.sinks), (other.first, other.sinks));
                    }
                }
                prop_assert_eq!(stream.packed(), u64::from(sinks) + packed.len() as u64);
                let until = u64::from(packing.tail) - tail.len() as u64 + u64::from(sinks).saturating_sub(stream.fed());
                prop_assert_eq!(stream.until_packed(), Some(until));
            }
        }

        #[test]
        fn millions_in_it_is_still_right(sinks in 0u32..6, recent in 1u32..20, fed in 4_000_000u64..5_000_000_000) {
            let mut stream = Stream::new(Policy::Sinks { sinks, recent });
            stream.jump(fed);
            prop_assert_eq!(stream.held(), u64::from(sinks + recent));
            let view = stream.feed(1).views.remove(0);
            prop_assert_eq!(view.held, sinks + recent);
            prop_assert_eq!(view.first, fed + 1 - u64::from(recent));
        }
    }
}
