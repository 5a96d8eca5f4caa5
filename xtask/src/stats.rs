//! Order statistics of measured values.

use std::time::Duration;

/// What is quoted of a series of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// How many were measured.
    pub count: usize,
    /// Half of them took at most this long.
    pub median: Duration,
    /// 99 in 100 took at most this long.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Summary {
    /// `None` of an empty series.
    pub fn of(samples: &[Duration]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        Some(Self {
            count: sorted.len(),
            median: nearest_rank(&sorted, 50)?,
            p99: nearest_rank(&sorted, 99)?,
            max: *sorted.last()?,
        })
    }
}

/// The smallest value that at least `percent` of the sorted values don't exceed (nearest rank: always a value that was
/// measured, never one in between).
fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// The median of plain numbers, e.g. nanoseconds per call; `None` of an empty series.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    nearest_rank(&sorted, 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(values: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        values.into_iter().map(Duration::from_millis).collect()
    }

    #[test]
    fn of_two_hundred_the_p99_leaves_two_above() {
        let summary = Summary::of(&millis((1..=200).rev())).unwrap();
        assert_eq!(
            (summary.count, summary.median, summary.p99, summary.max),
            (200, Duration::from_millis(100), Duration::from_millis(198), Duration::from_millis(200))
        );
    }

    #[test]
    fn one_value_is_all_of_them_and_none_is_nothing() {
        let summary = Summary::of(&millis([7])).unwrap();
        assert_eq!((summary.median, summary.p99, summary.max), (summary.max, summary.max, Duration::from_millis(7)));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_median_is_a_measured_value() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.0));
    }
}
