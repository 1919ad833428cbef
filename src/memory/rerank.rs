//! The last word on the order of the pool: the token evidence, or a cross-encoder.

use super::knobs::Knobs;
use super::scope::{Candidate, Scope};
use crate::error::Result;
use crate::model::encoder::{Encoded, Piece};
use crate::model::reranker::Reranker;
use crate::rank::evidence::{Evidence, QueryStates, dot};
use crate::rank::fuse::z_scores;
use crate::rank::weight::inverse_document_frequency;

/// A query that has been encoded.
pub struct Query<'a> {
    pub text: &'a str,
    pub pieces: Vec<Piece>,
    pub encoded: Encoded,
}

/// What decides the final order, for each member of the pool.
pub struct Verdicts {
    /// The token evidence.
    pub evidence: Vec<f64>,
    /// The cross-encoder's logits, if there is one.
    pub reranker: Option<Vec<f64>>,
    /// The score that orders.
    pub score: Vec<f64>,
    /// That score as a logit, for the learning: the cross-encoder's own, or the evidence in standard deviations of the pool.
    pub logit: Vec<f64>,
}

/// Judges the pool.
///
/// Without a cross-encoder the score is the token evidence; where `vector_alpha` is not 0 it is the seed's mixture
/// α z(s_pool) + (1 − α) z(s_sparse), standardised over the pool, where s_pool is the cosine of the whole-turn vectors.
pub fn judge(
    scope: &Scope,
    query: &Query,
    pool: &[Candidate],
    reranker: Option<&Reranker>,
    knobs: &Knobs,
) -> Result<Verdicts> {
    let memories = pool.iter().map(|&candidate| scope.memory(candidate)).collect::<Result<Vec<_>>>()?;
    let states = QueryStates { states: &query.encoded.states, dim: query.encoded.embedding.len() };
    let weight = |&piece: &Piece| match knobs.token_rule.weighted() {
        true => inverse_document_frequency(scope.turns(), scope.containing(piece)),
        false => 1.0,
    };
    let weights: Vec<f64> = query.pieces.iter().map(weight).collect();
    let evidence = Evidence::gather(&states, memories.iter().map(|memory| &memory.codes), knobs.token_k);
    let evidence = evidence.scores(&weights, knobs.token_rule.floored());
    let logits = reranker
        .map(|reranker| {
            let texts: Vec<&str> = memories.iter().map(|memory| memory.text.as_str()).collect();
            reranker.score(query.text, &texts)
        })
        .transpose()?;
    let score = match (&logits, knobs.vector_alpha) {
        (Some(logits), _) => logits.clone(),
        (None, 0.0) => evidence.clone(),
        (None, alpha) => {
            let vector =
                |memory: &&std::sync::Arc<super::snapshot::Memory>| dot(&query.encoded.embedding, &memory.embedding);
            let vectors: Vec<f64> = memories.iter().map(|memory| f64::from(vector(memory))).collect();
            let mix = |(vector, evidence): (f64, f64)| alpha * vector + (1.0 - alpha) * evidence;
            z_scores(&vectors).into_iter().zip(z_scores(&evidence)).map(mix).collect()
        }
    };
    let logit = logits.clone().unwrap_or_else(|| z_scores(&score));
    Ok(Verdicts { evidence, reranker: logits, score, logit })
}
