//! The life of one cache: what each token sees, and where it is put.

use crate::Policy;
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
    /// What left the cache to make room for it.
    pub evicted: Option<Range<u64>>,
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
    fed: u64,
}

impl Stream {
    /// An empty cache.
    pub fn new(policy: Policy) -> Self {
        Self { policy, fed: 0 }
    }

    /// The rule it follows.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Tokens read so far.
    pub fn fed(&self) -> u64 {
        self.fed
    }

    /// Slots in use.
    pub fn held(&self) -> u64 {
        self.policy.capacity().map_or(self.fed, |capacity| self.fed.min(capacity))
    }

    /// Reads `tokens` more and says what each of them sees. A chunk gives every token the view it would have had alone.
    pub fn feed(&mut self, tokens: u32) -> Chunk {
        let start = self.fed;
        let views: Vec<View> = (start..start + u64::from(tokens)).map(|index| self.view(index)).collect();
        self.fed += u64::from(tokens);
        let base = views.first().map_or(u64::from(self.policy.sinks()), |view| view.first);
        Chunk { start, base, views }
    }

    fn view(&self, index: u64) -> View {
        let sinks = u64::from(self.policy.sinks());
        let oldest = self.policy.recent().map_or(0, |recent| (index + 1).saturating_sub(u64::from(recent)));
        let first = oldest.max(sinks);
        let seen_sinks = sinks.min(index + 1);
        let recent = (index + 1).saturating_sub(first);
        View {
            index,
            first,
            sinks: narrow(seen_sinks),
            held: narrow(seen_sinks + recent),
            evicted: (first > sinks).then(|| first - 1..first),
        }
    }
}

/// Counts of slots fit into 32 bits: a dense cache stops long before.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as one would say it: a list of tokens, from which the oldest that is not a sink leaves.
    struct List {
        policy: Policy,
        kept: Vec<u64>,
        fed: u64,
    }

    impl List {
        fn read(&mut self) -> Option<u64> {
            self.kept.push(self.fed);
            self.fed += 1;
            match self.policy.capacity() {
                Some(capacity) if self.kept.len() as u64 > capacity => {
                    Some(self.kept.remove(self.policy.sinks() as usize))
                }
                _ => None,
            }
        }
    }

    fn seen(view: &View) -> Vec<u64> {
        (0..u64::from(view.sinks)).chain(view.first..view.index + 1).collect()
    }

    fn check(policy: Policy, chunks: &[u32]) {
        let mut list = List { policy, kept: Vec::new(), fed: 0 };
        let mut stream = Stream::new(policy);
        for &tokens in chunks {
            let chunk = stream.feed(tokens);
            assert_eq!(chunk.start, list.fed);
            for view in &chunk.views {
                let left = list.read();
                assert_eq!(seen(view), list.kept, "{policy:?} at {}", view.index);
                assert_eq!(view.held as usize, list.kept.len());
                assert_eq!(view.evicted, left.map(|token| token..token + 1));
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
        fn millions_in_it_is_still_right(sinks in 0u32..6, recent in 1u32..20, fed in 4_000_000u64..5_000_000_000) {
            let mut stream = Stream { policy: Policy::Sinks { sinks, recent }, fed };
            let view = stream.feed(1).views.remove(0);
            prop_assert_eq!(view.held, sinks + recent);
            prop_assert_eq!(view.first, fed + 1 - u64::from(recent));
        }
    }
}
