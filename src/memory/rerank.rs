//! The last word on the order of the pool: the token evidence, or a cross-encoder.

use super::knobs::Knobs;
use super::parallel::in_parallel;
use super::scope::{Candidate, Scope};
use crate::error::Result;
use crate::model::encoder::{Encoded, Piece};
use crate::model::reranker::Reranker;
use crate::rank::codes::QueryCodes;
use crate::rank::evidence::Evidence;
use crate::rank::fuse::z_scores;
use crate::rank::weight::inverse_document_frequency;

/// A query that has been encoded.
pub struct Query<'a> {
    pub text: &'a str,
    pub pieces: Vec<Piece>,
    /// Unit vector.
    pub embedding: Vec<f32>,
    pub vector: QueryCodes,
    pub tokens: QueryCodes,
}

impl<'a> Query<'a> {
    pub fn new(text: &'a str, pieces: Vec<Piece>, encoded: Encoded) -> Self {
        let dim = encoded.embedding.len();
        let [vector, tokens] = [&encoded.embedding, &encoded.states].map(|states| QueryCodes::encode(states, dim));
        Self { text, pieces, embedding: encoded.embedding, vector, tokens }
    }
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

/// Fewer candidates than this are not worth another thread.
const WORTH_A_THREAD: usize = 32;

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
    threads: usize,
) -> Result<Verdicts> {
    let weight = |&piece: &Piece| match knobs.token_rule.weighted() {
        true => inverse_document_frequency(scope.size(), scope.containing(piece)),
        false => 1.0,
    };
    let weights: Vec<f64> = query.pieces.iter().map(weight).collect();
    let floored = knobs.token_rule.floored();
    let evidence = evidence(scope, query, pool, if floored { knobs.token_k } else { 0 }, threads)?;
    let evidence = evidence.map_or_else(Vec::new, |evidence| evidence.scores(&weights, floored));
    let logits = reranker
        .map(|reranker| {
            let text =
                |&candidate: &Candidate| Ok(scope.place(candidate)?.store.template.text(&scope.turn(candidate)?));
            let texts = pool.iter().map(text).collect::<Result<Vec<String>>>()?;
            reranker.score(query.text, &texts.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .transpose()?;
    let score = match (&logits, knobs.vector_alpha) {
        (Some(logits), _) => logits.clone(),
        (None, 0.0) => evidence.clone(),
        (None, alpha) => {
            let vector = |&candidate: &Candidate| {
                let similarity = scope.place(candidate)?.snapshot.similarity(&query.vector, candidate.slot)?;
                Ok(f64::from(similarity))
            };
            let vectors = pool.iter().map(vector).collect::<Result<Vec<f64>>>()?;
            let mix = |(vector, evidence): (f64, f64)| alpha * vector + (1.0 - alpha) * evidence;
            z_scores(&vectors).into_iter().zip(z_scores(&evidence)).map(mix).collect()
        }
    };
    let logit = logits.clone().unwrap_or_else(|| z_scores(&score));
    Ok(Verdicts { evidence, reranker: logits, score, logit })
}

/// The token evidence for each member of the pool, gathered by all threads; `None` for an empty pool.
fn evidence(scope: &Scope, query: &Query, pool: &[Candidate], k: usize, threads: usize) -> Result<Option<Evidence>> {
    let parts = in_parallel(pool, threads, WORTH_A_THREAD, |pool| {
        let tokens = pool.iter().map(|&candidate| scope.tokens(candidate));
        let codes = tokens.map(|tokens| Ok(tokens?.codes)).collect::<Result<Vec<_>>>()?;
        Ok(Evidence::gather(&query.tokens, &codes, k))
    });
    Ok(Evidence::join(parts.into_iter().collect::<Result<Vec<_>>>()?))
}
