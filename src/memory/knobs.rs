//! Every number that shapes ranking and learning.

use crate::rank::evidence::TokenRule;
use crate::rank::suppression::{PenaltyScale, Retention};

/// How the lists of the sources become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    ReciprocalRank,
    ZScore,
}

impl Fusion {
    pub const NAMES: [(&'static str, Self); 2] = [("rrf", Self::ReciprocalRank), ("zscore", Self::ZScore)];
}

/// The knobs of the ranking and of the learning. Their meaning, ranges and defaults are declared with the settings.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// How many candidates each source brings.
    pub candidates: usize,
    pub fusion: Fusion,
    pub rrf_k: f64,
    /// Weight of the words in z-score fusion; the vectors have the rest.
    pub word_weight: f64,
    /// How many fused candidates are reranked; `None`: all.
    pub pool: Option<usize>,
    pub token_rule: TokenRule,
    /// The seed's k: which neighbour is the floor.
    pub token_k: usize,
    /// The seed's α: weight of the whole-turn vector next to the token evidence.
    pub vector_alpha: f64,
    /// The lethe paper's α.
    pub suppression_alpha: f64,
    pub penalty: PenaltyScale,
    /// The lethe paper's η.
    pub eta: f64,
    /// The lethe paper's P: how many of the pool's first are learned from.
    pub learning_depth: usize,
    pub retention: Retention,
    /// What `ignored` adds to a suppression.
    pub feedback_step: f64,
    /// The lethe paper's K.
    pub clusters: usize,
    /// How many retrievals there must be before they are clustered.
    pub cluster_after: usize,
    pub retrievals_kept: usize,
}
