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

use std::borrow::Borrow;

use super::codes::{Codes, QueryCodes, Space};
use super::order::Highest;

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

/// best_i(m) for every candidate, and the floor t_i of every query token.
pub struct Evidence {
    tokens: usize,
    memories: usize,
    /// Row m holds best_i(m) for every i.
    best: Vec<f32>,
    nearest: Vec<Highest>,
}

impl Evidence {
    /// Nothing met yet, for a query of so many tokens.
    ///
    /// `k` is the seed's k, the place of the similarity that becomes the floor; with fewer candidate tokens than `k`, and
    /// with k = 0, the floor is 0, since then no memory has to compete.
    pub fn new(tokens: usize, k: usize) -> Self {
        Self { tokens, memories: 0, best: Vec::new(), nearest: vec![Highest::new(k); tokens] }
    }

    /// Meets every token of a query, a row of `query` each, with every token of one more candidate. A memory without tokens has
    /// no evidence: best_i = −1. `space` is working memory that is kept between calls.
    pub fn add(&mut self, query: &QueryCodes, memory: &Codes, space: &mut Space) {
        self.memories += 1;
        let row = self.best.len();
        self.best.resize(row + self.tokens, -1f32);
        let (best, nearest) = (&mut self.best[row..], &mut self.nearest);
        query.interact(memory, space, |token, similarity| {
            best[token] = best[token].max(similarity);
            nearest[token].offer(similarity);
        });
    }

    /// The evidence of candidates that all meet the same query.
    pub fn gather<C: Borrow<Codes>>(query: &QueryCodes, candidates: impl IntoIterator<Item = C>, k: usize) -> Self {
        let mut evidence = Self::new(query.len(), k);
        let mut space = Space::default();
        candidates.into_iter().for_each(|memory| evidence.add(query, memory.borrow(), &mut space));
        evidence
    }

    /// The evidence of candidates gathered part by part, as if they had been gathered at once. `None` without a part.
    pub fn join(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        parts.into_iter().reduce(|mut all, part| {
            all.memories += part.memories;
            all.best.extend(part.best);
            for (nearest, other) in all.nearest.iter_mut().zip(part.nearest) {
                other.into_values().for_each(|similarity| nearest.offer(similarity));
            }
            all
        })
    }

    /// The evidence of more candidates behind these, as if nobody had to compete with them: the floors stay.
    pub fn extend(&mut self, more: Self) {
        self.memories += more.memories;
        self.best.extend(more.best);
    }

    /// max(best_i(m), t_i), or best_i(m) without floors: a row of `tokens` values a memory.
    pub fn rows(&self, floored: bool) -> Vec<f32> {
        if !floored || self.tokens == 0 {
            return self.best.clone();
        }
        let floors = self.floors();
        self.best.chunks_exact(self.tokens).flat_map(|row| row.iter().zip(&floors).map(|(&b, &t)| b.max(t))).collect()
    }

    /// Σ_i w_i max(best_i(m), t_i) / Σ_i w_i for every candidate m, in the order they were gathered.
    ///
    /// `weights` holds one non-negative weight a query token. Zeros when the query has no tokens or no weight.
    pub fn scores(&self, weights: &[f64], floored: bool) -> Vec<f64> {
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return vec![0.0; self.memories];
        }
        let floors = self.floors();
        let score = |best: &[f32]| {
            let met = best.iter().zip(&floors).zip(weights);
            let sum: f64 = met.map(|((&b, &t), w)| w * f64::from(if floored { b.max(t) } else { b })).sum();
            sum / total
        };
        self.best.chunks_exact(self.tokens).map(score).collect()
    }

    /// t_i for every query token.
    fn floors(&self) -> Vec<f32> {
        self.nearest.iter().map(|nearest| nearest.threshold().max(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::codes::Bits;
    use super::*;
    use proptest::prelude::*;

    fn coded(states: &[f32]) -> Codes {
        Codes::encode(states, 2, Bits::Eight)
    }

    fn query(states: &[f32]) -> QueryCodes {
        QueryCodes::encode(states, 2)
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
        let query = query(&[1.0, 0.0, 0.0, 1.0]);
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
        let query = query(&[1.0, 0.0]);
        let memories = [coded(&[0.6, 0.8]), coded(&[-1.0, 0.0])];
        assert_eq!(Evidence::gather(&query, &memories, 3).floors(), [0.0]);
        // the second highest is −1: the floor never goes below 0
        assert_eq!(Evidence::gather(&query, &memories, 2).floors(), [0.0]);
        assert!((Evidence::gather(&query, &memories, 1).floors()[0] - 0.6).abs() < 0.01);
    }

    #[test]
    fn nothing_to_meet() {
        let none = query(&[]);
        assert!(none.is_empty());
        assert_eq!(Evidence::gather(&none, &[coded(&[1.0, 0.0])], 2).scores(&[], true), [0.0]);
        let query = query(&[1.0, 0.0]);
        assert_eq!(Evidence::gather(&query, &[coded(&[])], 2).scores(&[1.0], false), [-1.0]);
    }

    proptest! {
        #[test]
        fn parts_join_to_the_whole(states in prop::collection::vec(-1f32..1.0, 24), cut in 0usize..7, k in 0usize..9) {
            let memories: Vec<Codes> = states.chunks(4).map(coded).collect();
            let query = query(&[0.6, 0.8, -0.8, 0.6]);
            let whole = Evidence::gather(&query, &memories, k);
            let cut = cut.min(memories.len());
            let parts = [&memories[..cut], &memories[cut..]].map(|part| Evidence::gather(&query, part, k));
            let joined = Evidence::join(parts).unwrap();
            for floored in [false, true] {
                prop_assert_eq!(joined.scores(&[2.0, 1.0], floored), whole.scores(&[2.0, 1.0], floored));
            }
        }
    }
}
