//! What is said about the losses of several caches on one text.

use std::ops::Range;

/// Tokens of a rolling mean.
pub const ROLLING: usize = 64;
/// A cache has recovered when its rolling loss is this close to the dense one's again, in nats.
pub const CLOSE: f64 = 0.1;

/// One cache's way through the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// As the setting was written.
    pub name: String,
    /// -ln p(token i + 1) by stream position i, in nats; none where it was not measured.
    pub nll: Vec<Option<f64>>,
    /// The position whose token evicts another for the first time; none for a cache that keeps all.
    pub eviction: Option<usize>,
    /// Milliseconds of a token that is read alone, at the end of the text.
    pub milliseconds: f64,
    /// Bytes of the cache at the end of the text.
    pub bytes: u64,
}

impl Series {
    /// `exp` of the mean loss of the positions in `range` that were measured; none if none was.
    pub fn perplexity(&self, range: Range<usize>) -> Option<f64> {
        let range = range.start.min(self.nll.len())..range.end.min(self.nll.len());
        if range.is_empty() {
            return None;
        }
        let measured: Vec<f64> = self.nll[range].iter().filter_map(|nll| *nll).collect();
        (!measured.is_empty()).then(|| (measured.iter().sum::<f64>() / measured.len() as f64).exp())
    }

    /// The mean of the last [`ROLLING`] losses up to each position, none before there are so many, or, where only some
    /// positions are measured, the mean of as many of those, however far they lie back.
    pub fn rolling(&self) -> Vec<Option<f64>> {
        let mut last = std::collections::VecDeque::with_capacity(ROLLING);
        let rolled = |nll: &Option<f64>| {
            let nll = (*nll)?;
            if last.len() == ROLLING {
                last.pop_front();
            }
            last.push_back(nll);
            (last.len() == ROLLING).then(|| last.iter().sum::<f64>() / ROLLING as f64)
        };
        self.nll.iter().map(rolled).collect()
    }
}

/// How a cache took its first eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It never evicts.
    NoEviction,
    /// Its rolling loss never left the dense one's by [`CLOSE`].
    Unharmed,
    /// It left it, and was back so many tokens after the eviction.
    After(usize),
    /// It left it and was not back by the end of the text.
    Never,
    /// It was not measured at every position.
    Sampled,
}

/// Compares the rolling loss of `series` with that of a cache that keeps all.
pub fn recovery(series: &Series, dense: &Series) -> Recovery {
    let Some(eviction) = series.eviction.filter(|at| *at < series.nll.len()) else { return Recovery::NoEviction };
    if series.nll.contains(&None) {
        return Recovery::Sampled;
    }
    let apart = |at: usize, rolling: &[Vec<Option<f64>>; 2]| match (rolling[0][at], rolling[1][at]) {
        (Some(one), Some(all)) => one - all > CLOSE,
        _ => false,
    };
    let rolling = [series.rolling(), dense.rolling()];
    let positions = eviction..series.nll.len().min(dense.nll.len());
    match positions.clone().find(|at| apart(*at, &rolling)) {
        None => Recovery::Unharmed,
        Some(left) => match (left..positions.end).find(|at| !apart(*at, &rolling)) {
            Some(back) => Recovery::After(back - eviction),
            None => Recovery::Never,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(nll: Vec<Option<f64>>, eviction: Option<usize>) -> Series {
        Series { name: String::new(), nll, eviction, milliseconds: 0.0, bytes: 0 }
    }

    #[test]
    fn perplexity_is_of_the_measured_positions() {
        let one = series(vec![Some(1.0), None, Some(3.0), Some(100.0)], None);
        assert_eq!(one.perplexity(0..3), Some(2.0f64.exp()));
        assert_eq!(one.perplexity(1..2), None);
        assert_eq!(one.perplexity(3..99), Some(100.0f64.exp()));
        assert_eq!(one.perplexity(9..99), None);
    }

    #[test]
    fn a_cache_recovers_when_its_rolling_loss_is_back() {
        let dense = series(vec![Some(2.0); 600], None);
        let mut nll = vec![Some(2.0); 600];
        nll[200..210].fill(Some(5.0));
        // Three nats too many each: two of them are within 0.1 in a mean of 64, and the mean that begins at 208 has but two.
        assert_eq!(recovery(&series(nll.clone(), Some(200)), &dense), Recovery::After(8 + 63));
        assert_eq!(recovery(&series(vec![Some(2.05); 600], Some(200)), &dense), Recovery::Unharmed);
        nll[200..].fill(Some(5.0));
        assert_eq!(recovery(&series(nll.clone(), Some(200)), &dense), Recovery::Never);
        assert_eq!(recovery(&series(nll.clone(), None), &dense), Recovery::NoEviction);
        nll[300] = None;
        assert_eq!(recovery(&series(nll, Some(200)), &dense), Recovery::Sampled);
    }

    #[test]
    fn the_rolling_mean_waits_for_enough_losses() {
        let rolling = series((0..100).map(|i| Some(f64::from(i))).collect(), None).rolling();
        assert_eq!(rolling[ROLLING - 2], None);
        assert_eq!(rolling[ROLLING - 1], Some(31.5));
        assert_eq!(rolling[99], Some(67.5));
    }
}
