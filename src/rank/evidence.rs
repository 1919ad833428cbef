//! Token-level evidence: how well each token of a query is met by some token of a memory.
//!
//! For query token i with unit state h_i and memory m with token states h_{m,j} (seed: "Beyond the Final Embedding"),
//!
//! * best_i(m) = max_j ⟨h_i, h_{m,j}⟩, the late interaction of ColBERT;
//! * t_i = max(0, the k-th highest ⟨h_i, h⟩ over all tokens of all candidates): the floor, by which memories compete. A
//!   common token has many near neighbours, so a high floor, so it decides nothing;
//! * score(m) = Σ_i w_i max(best_i(m), t_i) / Σ_i w_i.
//!
//! The seed's rule has the floor and w_i = 1. Without a floor and with w_i = 1 it is MaxSim. With w_i the inverse document
//! frequency of the token, no floor is needed, and the score does not depend on which other memories are candidates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::codes::TokenCodes;

/// Which evidence counts, and how much each query token weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRule {
    /// Every token weighs the same, no floor.
    MaxSim,
    /// Tokens weigh by inverse document frequency, no floor.
    Idf,
    /// The seed's: every token weighs the same, evidence below the floor is raised to it.
    Floor,
    /// Floor and weights.
    FloorIdf,
}

impl TokenRule {
    pub const NAMES: [(&'static str, Self); 4] =
        [("idf", Self::Idf), ("floor", Self::Floor), ("maxsim", Self::MaxSim), ("floor_idf", Self::FloorIdf)];

    pub fn weighted(self) -> bool {
        matches!(self, Self::Idf | Self::FloorIdf)
    }

    pub fn floored(self) -> bool {
        matches!(self, Self::Floor | Self::FloorIdf)
    }
}

/// The unit token states of a query, row by row.
pub struct QueryStates<'a> {
    pub states: &'a [f32],
    pub dim: usize,
}

impl QueryStates<'_> {
    pub fn len(&self) -> usize {
        self.states.len() / self.dim.max(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// best_i(m) for every candidate, and the floor t_i of every query token.
pub struct Evidence {
    tokens: usize,
    memories: usize,
    /// Row m holds best_i(m) for every i.
    best: Vec<f32>,
    floors: Vec<f32>,
}

impl Evidence {
    /// Meets every query token with every token of every candidate.
    ///
    /// `k` is the seed's k, the place of the similarity that becomes the floor; with fewer candidate tokens than `k` the
    /// floor is 0, since then no memory has to compete. A memory without tokens has no evidence: best_i = −1.
    pub fn gather<'a>(query: &QueryStates, candidates: impl IntoIterator<Item = &'a TokenCodes>, k: usize) -> Self {
        let tokens = query.len();
        let mut nearest = vec![Nearest::new(k); tokens];
        let (mut best, mut memories) = (Vec::new(), 0);
        let mut state = vec![0f32; query.dim];
        for memory in candidates {
            memories += 1;
            let row = best.len();
            best.resize(row + tokens, -1f32);
            for token in 0..memory.len() {
                memory.decode(token, &mut state);
                for (i, h) in query.states.chunks_exact(query.dim).enumerate() {
                    let similarity = dot(h, &state);
                    best[row + i] = best[row + i].max(similarity);
                    nearest[i].offer(similarity);
                }
            }
        }
        Self { tokens, memories, best, floors: nearest.iter().map(Nearest::floor).collect() }
    }

    /// Σ_i w_i max(best_i(m), t_i) / Σ_i w_i for every candidate m, in the order they were gathered.
    ///
    /// `weights` holds one non-negative weight a query token. Zeros when the query has no tokens or no weight.
    pub fn scores(&self, weights: &[f64], floored: bool) -> Vec<f64> {
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return vec![0.0; self.memories];
        }
        let score = |best: &[f32]| {
            let met = best.iter().zip(&self.floors).zip(weights);
            let sum: f64 = met.map(|((&b, &t), w)| w * f64::from(if floored { b.max(t) } else { b })).sum();
            sum / total
        };
        self.best.chunks_exact(self.tokens).map(score).collect()
    }
}

/// ⟨a, b⟩ in eight running sums, which the compiler turns into vector instructions.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0f32; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Scales `x` to length one, in place. A zero vector stays zero.
pub fn normalise(x: &mut [f32]) {
    let norm = dot(x, x).sqrt();
    if norm > 0.0 {
        x.iter_mut().for_each(|v| *v /= norm);
    }
}

/// The k highest similarities seen so far.
#[derive(Clone)]
struct Nearest {
    k: usize,
    heap: BinaryHeap<Reverse<Similarity>>,
}

#[derive(Clone, Copy, PartialEq)]
struct Similarity(f32);

impl Eq for Similarity {}
impl PartialOrd for Similarity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Similarity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Nearest {
    fn new(k: usize) -> Self {
        Self { k, heap: BinaryHeap::new() }
    }

    fn offer(&mut self, similarity: f32) {
        if self.heap.len() < self.k {
            self.heap.push(Reverse(Similarity(similarity)));
        } else if let Some(mut lowest) = self.heap.peek_mut()
            && similarity > lowest.0.0
        {
            *lowest = Reverse(Similarity(similarity));
        }
    }

    fn floor(&self) -> f32 {
        match self.heap.peek() {
            Some(lowest) if self.heap.len() == self.k => lowest.0.0.max(0.0),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes::Bits;
    use super::*;
    use proptest::prelude::*;

    fn coded(states: &[f32]) -> TokenCodes {
        TokenCodes::encode(states, 2, Bits::Eight)
    }

    /// Two query tokens along the axes; three memories. Similarities are read off the coordinates:
    ///
    /// ```text
    /// token            a: (1,0)   b: (0,1) (.6,.8)   c: (−1,0)
    /// ⟨(1,0), ·⟩          1          0     .6           −1      best: 1, .6, −1    second highest: .6
    /// ⟨(0,1), ·⟩          0          1     .8            0      best: 0, 1, 0      second highest: .8
    /// ```
    #[test]
    fn rules_by_hand() {
        let query = QueryStates { states: &[1.0, 0.0, 0.0, 1.0], dim: 2 };
        let memories = [coded(&[1.0, 0.0]), coded(&[0.0, 1.0, 0.6, 0.8]), coded(&[-1.0, 0.0])];
        let evidence = Evidence::gather(&query, &memories, 2);
        let close = |got: Vec<f64>, want: [f64; 3]| {
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.005), "{got:?} {want:?}");
        };
        close(evidence.scores(&[1.0, 1.0], false), [0.5, 0.8, -0.5]);
        close(evidence.scores(&[3.0, 1.0], false), [0.75, 0.7, -0.75]);
        close(evidence.scores(&[1.0, 1.0], true), [0.9, 0.8, 0.7]);
        close(evidence.scores(&[3.0, 1.0], true), [0.95, 0.7, 0.65]);
        close(evidence.scores(&[0.0, 0.0], true), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn without_k_tokens_to_compete_the_floor_is_zero() {
        let query = QueryStates { states: &[1.0, 0.0], dim: 2 };
        let memories = [coded(&[0.6, 0.8]), coded(&[-1.0, 0.0])];
        assert_eq!(Evidence::gather(&query, &memories, 3).floors, [0.0]);
        // the second highest is −1: the floor never goes below 0
        assert_eq!(Evidence::gather(&query, &memories, 2).floors, [0.0]);
        assert!((Evidence::gather(&query, &memories, 1).floors[0] - 0.6).abs() < 0.01);
    }

    #[test]
    fn nothing_to_meet() {
        let none = QueryStates { states: &[], dim: 2 };
        assert!(none.is_empty());
        assert_eq!(Evidence::gather(&none, &[coded(&[1.0, 0.0])], 2).scores(&[], true), [0.0]);
        let query = QueryStates { states: &[1.0, 0.0], dim: 2 };
        assert_eq!(Evidence::gather(&query, &[coded(&[])], 2).scores(&[1.0], false), [-1.0]);
    }

    proptest! {
        #[test]
        fn dot_is_the_sum_of_products(pairs in prop::collection::vec((-1f32..1.0, -1f32..1.0), 0..50)) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let plain: f64 = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            prop_assert!((f64::from(dot(&a, &b)) - plain).abs() < 1e-4);
        }

        #[test]
        fn the_floor_is_the_kth_highest_of_all(similarities in prop::collection::vec(-1f32..1.0, 1..40), k in 1usize..45) {
            let mut nearest = Nearest::new(k);
            similarities.iter().for_each(|&s| nearest.offer(s));
            let mut sorted = similarities.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            prop_assert_eq!(nearest.floor(), sorted.get(k - 1).copied().unwrap_or(0.0).max(0.0));
        }
    }
}
