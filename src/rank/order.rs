//! A total order on scored things: the highest score first, equal scores by id, scores that are not finite last.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Something with a score; higher is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored<I> {
    pub id: I,
    pub score: f64,
}

impl<I: Ord> Scored<I> {
    /// Orders two scored things so that the better one comes first.
    ///
    /// The order is total: equal scores are ordered by id, and NaN and infinities come after every finite score, so a
    /// broken score can never displace a sound one and the same input always gives the same rows.
    pub fn best_first(&self, other: &Self) -> Ordering {
        let finite_first = other.score.is_finite().cmp(&self.score.is_finite());
        let higher_first = if self.score.is_finite() && other.score.is_finite() {
            other.score.total_cmp(&self.score)
        } else {
            Ordering::Equal
        };
        finite_first.then(higher_first).then_with(|| self.id.cmp(&other.id))
    }
}

/// Sorts in place, best first.
pub fn sort<I: Ord>(scored: &mut [Scored<I>]) {
    scored.sort_unstable_by(Scored::best_first);
}

/// Keeps the best `n`, best first. All of them when there are fewer.
pub fn top<I: Ord>(mut scored: Vec<Scored<I>>, n: usize) -> Vec<Scored<I>> {
    if n < scored.len() && n > 0 {
        scored.select_nth_unstable_by(n - 1, Scored::best_first);
    }
    scored.truncate(n);
    sort(&mut scored);
    scored
}

/// The n highest of the values that were offered.
#[derive(Clone)]
pub struct Highest {
    n: usize,
    heap: BinaryHeap<Reverse<Total>>,
}

/// A float in its total order.
#[derive(Clone, Copy)]
struct Total(f32);

impl PartialEq for Total {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Total {}
impl PartialOrd for Total {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Total {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Highest {
    pub fn new(n: usize) -> Self {
        Self { n, heap: BinaryHeap::new() }
    }

    pub fn offer(&mut self, value: f32) {
        if self.heap.len() < self.n {
            self.heap.push(Reverse(Total(value)));
        } else if let Some(mut lowest) = self.heap.peek_mut()
            && value > lowest.0.0
        {
            *lowest = Reverse(Total(value));
        }
    }

    /// The n-th highest value; −∞ while there are fewer, or when n is 0.
    pub fn threshold(&self) -> f32 {
        match self.heap.peek() {
            Some(lowest) if self.heap.len() == self.n => lowest.0.0,
            _ => f32::NEG_INFINITY,
        }
    }

    /// The values, in no particular order.
    pub fn into_values(self) -> impl Iterator<Item = f32> {
        self.heap.into_iter().map(|value| value.0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scored(pairs: &[(u32, f64)]) -> Vec<Scored<u32>> {
        pairs.iter().map(|&(id, score)| Scored { id, score }).collect()
    }

    fn ids(list: &[Scored<u32>]) -> Vec<u32> {
        list.iter().map(|s| s.id).collect()
    }

    #[test]
    fn ties_go_to_the_smaller_id_and_broken_scores_go_last() {
        let list = scored(&[(4, f64::NAN), (3, 1.0), (1, 1.0), (2, 2.0), (0, f64::INFINITY)]);
        assert_eq!(ids(&top(list.clone(), 10)), [2, 1, 3, 0, 4]);
        assert_eq!(ids(&top(list.clone(), 2)), [2, 1]);
        assert!(top(list, 0).is_empty());
    }

    proptest! {
        #[test]
        fn top_is_a_prefix_of_the_whole_sorted_list(
            scores in prop::collection::vec(prop_oneof![-3i32..3, Just(i32::MAX)], 0..60), n in 0usize..70,
        ) {
            let list: Vec<_> = scores.iter().enumerate()
                .map(|(id, &s)| Scored { id: id as u32, score: if s == i32::MAX { f64::NAN } else { f64::from(s) } })
                .collect();
            let mut whole = list.clone();
            whole.sort_by(Scored::best_first);
            whole.truncate(n);
            prop_assert_eq!(ids(&top(list, n)), ids(&whole));
        }

        #[test]
        fn the_threshold_is_the_nth_highest(values in prop::collection::vec(-1f32..1.0, 1..40), n in 0usize..45) {
            let mut highest = Highest::new(n);
            values.iter().for_each(|&value| highest.offer(value));
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let expected = if n == 0 { None } else { sorted.get(n - 1).copied() };
            prop_assert_eq!(highest.threshold(), expected.unwrap_or(f32::NEG_INFINITY));
            let mut kept: Vec<f32> = highest.into_values().collect();
            kept.sort_by(|a, b| b.total_cmp(a));
            prop_assert_eq!(&kept[..], &sorted[..n.min(sorted.len())]);
        }
    }
}
