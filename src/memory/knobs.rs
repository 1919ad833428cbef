//! Every number that shapes ranking and learning.

use crate::rank::conversation::Priors;
use crate::rank::evidence::TokenRule;
use crate::rank::likeness::Thresholds;
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

/// Which query adapter turns the token states of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The one the store trained, else the one that came with the encoder.
    Auto,
    /// The one that came with the encoder.
    Encoder,
    None,
}

impl AdapterChoice {
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("encoder", Self::Encoder), ("none", Self::None)];
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
    /// How many of the pool a cross-encoder reads at first; `None`: all.
    pub rerank_budget: Option<usize>,
    /// The logit from which on an answer convinces, so that no more are read.
    pub rerank_threshold: f64,
    pub adapter: AdapterChoice,
    pub priors: Priors,
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
    /// How much a verdict on a question moves the answers to questions like it, in standard deviations of the pool's scores.
    pub feedback_bonus: f64,
    /// From where on questions are alike, for that.
    pub feedback_likeness: Thresholds,
    /// The same for what was found for a question, as a multiple of its scores, which are in standard deviations too.
    pub precedent_bonus: f64,
    pub precedent_likeness: Thresholds,
    /// Whether what did harm is left out.
    pub watch: bool,
    /// What `ignored` adds to a suppression.
    pub feedback_step: f64,
    /// The lethe paper's K.
    pub clusters: usize,
    /// How many retrievals there must be before they are clustered.
    pub cluster_after: usize,
    pub retrievals_kept: usize,
}
