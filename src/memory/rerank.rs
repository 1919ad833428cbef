//! The last word on the order of the pool: the token evidence, or a cross-encoder.

use std::collections::HashMap;
use std::iter::successors;
use std::sync::Arc;

use super::hints::Hints;
use super::knobs::Knobs;
use super::scope::{Candidate, Scope};
use super::snapshot::Side;
use crate::error::Result;
use crate::index::segment::Recalled;
use crate::model::encoder::{Encoded, Piece};
use crate::model::reranker::Reranker;
use crate::rank::adapter::Adapter;
use crate::rank::codes::{QueryCodes, Space};
use crate::rank::conversation::{self, Met, REACH, Traits};
use crate::rank::evidence::Evidence;
use crate::rank::fuse::z_scores;
use crate::rank::order::{self, Scored};
use crate::rank::parallel::in_parallel;
use crate::rank::weight::inverse_document_frequency;

/// A query that has been encoded.
pub struct Query<'a> {
    pub text: &'a str,
    pub pieces: Vec<Piece>,
    /// Unit vector.
    pub embedding: Vec<f32>,
    pub vector: QueryCodes,
    /// The token states for each store of the scope, turned by its query adapter.
    pub tokens: Vec<QueryCodes>,
}

impl<'a> Query<'a> {
    /// `adapters` has a place for each store of the scope.
    pub fn new(text: &'a str, pieces: Vec<Piece>, encoded: Encoded, adapters: &[Option<Arc<Adapter>>]) -> Self {
        let Encoded { embedding, states } = encoded;
        let code = |states: &[f32]| QueryCodes::encode(states, embedding.len());
        let turned = |adapter: &Option<Arc<Adapter>>| match adapter {
            Some(adapter) => code(&adapter.apply(&states)),
            None => code(&states),
        };
        let tokens = adapters.iter().map(turned).collect();
        Self { text, pieces, vector: code(&embedding), embedding, tokens }
    }
}

/// What decides the final order, for each member of the pool.
pub struct Verdicts {
    /// The token evidence.
    pub evidence: Vec<f64>,
    /// The cross-encoder's logits, if there is one; `None` for those it did not read.
    pub reranker: Vec<Option<f64>>,
    /// The score that orders; −∞ for those a cross-encoder did not read, of which none is asked for.
    pub score: Vec<f64>,
    /// That score as a logit, for the learning: the cross-encoder's own, of those it did not read its lowest, or the evidence in
    /// standard deviations of the pool.
    pub logit: Vec<f64>,
}

/// Fewer candidates than this are not worth another thread.
const WORTH_A_THREAD: usize = 32;

/// So many of the best by their own evidence are judged with the turns around them, and as many as are asked for.
const LOOKED_AROUND: usize = 100;

/// Judges the pool, of which the best `k` are asked for.
///
/// Without a cross-encoder the score is the token evidence and what the conversation adds to it; where `vector_alpha` is not 0 it
/// is the seed's mixture α z(s_pool) + (1 − α) z(s_sparse), standardised over the pool, where s_pool is the cosine of the
/// whole-turn vectors.
pub fn judge(
    scope: &Scope,
    query: &Query,
    pool: &[Candidate],
    k: usize,
    reranker: Option<&Reranker>,
    knobs: &Knobs,
    threads: usize,
) -> Result<Verdicts> {
    let weights = weights(scope, query, knobs);
    let floored = knobs.token_rule.floored();
    let examiner = Examiner { scope, query, hints: Hints::of(query.text), threads };
    let mut examined = examiner.examine(pool, if floored { knobs.token_k } else { 0 })?;
    let evidence = examined.evidence.scores(&weights, floored);
    let logits = reranker.map(|reranker| examiner.cross_encode(reranker, pool, &evidence, k, knobs)).transpose()?;
    let said = match (&logits, knobs.priors.are_zero()) {
        (None, false) => {
            examiner.in_conversation(pool, &evidence, k.max(LOOKED_AROUND), &mut examined, &weights, knobs)?
        }
        _ => evidence.clone(),
    };
    let score = match (&logits, knobs.vector_alpha) {
        (Some(logits), _) => logits.iter().map(|logit| logit.unwrap_or(f64::NEG_INFINITY)).collect(),
        (None, 0.0) => said,
        (None, alpha) => {
            let vector = |&candidate: &Candidate| {
                let similarity = scope.place(candidate)?.snapshot.similarity(&query.vector, candidate.slot)?;
                Ok(f64::from(similarity))
            };
            let vectors = pool.iter().map(vector).collect::<Result<Vec<f64>>>()?;
            let mix = |(vector, evidence): (f64, f64)| alpha * vector + (1.0 - alpha) * evidence;
            z_scores(&vectors).into_iter().zip(z_scores(&said)).map(mix).collect()
        }
    };
    let logit = match &logits {
        None => z_scores(&score),
        Some(logits) => {
            let lowest = logits.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            logits.iter().map(|logit| logit.unwrap_or(lowest)).collect()
        }
    };
    let reranker = logits.unwrap_or_else(|| vec![None; pool.len()]);
    Ok(Verdicts { evidence, reranker, score, logit })
}

/// How much each token of the query weighs.
pub fn weights(scope: &Scope, query: &Query, knobs: &Knobs) -> Vec<f64> {
    let weight = |&piece: &Piece| match knobs.token_rule.weighted() {
        true => inverse_document_frequency(scope.size(), scope.containing(piece)),
        false => 1.0,
    };
    query.pieces.iter().map(weight).collect()
}

/// Memories that were read and met with the query's tokens.
struct Examined {
    evidence: Evidence,
    traits: Vec<Traits>,
}

/// A query, and where its candidates are read.
struct Examiner<'a> {
    scope: &'a Scope,
    query: &'a Query<'a>,
    hints: Hints,
    threads: usize,
}

impl Examiner<'_> {
    /// Reads each candidate and meets it with the query's tokens, on all threads. `k` is that of the floor.
    fn examine(&self, candidates: &[Candidate], k: usize) -> Result<Examined> {
        let nothing = || Examined { evidence: Evidence::new(self.query.pieces.len(), k), traits: Vec::new() };
        let parts = in_parallel(candidates, self.threads, WORTH_A_THREAD, |part| -> Result<Examined> {
            let (mut examined, mut space) = (nothing(), Space::default());
            for &candidate in part {
                let Recalled { tokens, said, .. } = self.scope.recall(candidate)?;
                examined.evidence.add(&self.query.tokens[candidate.store], &tokens, &mut space);
                examined.traits.push(self.hints.traits(&said));
            }
            Ok(examined)
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
        let (evidence, traits): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|examined| (examined.evidence, examined.traits)).unzip();
        Ok(Examined {
            evidence: Evidence::join(evidence).unwrap_or_else(|| nothing().evidence),
            traits: traits.concat(),
        })
    }

    /// The cross-encoder's logits of the pool's best by token evidence, as many as the budget and `k` say; and of all of it
    /// where none of them convinces.
    fn cross_encode(
        &self,
        reranker: &Reranker,
        pool: &[Candidate],
        own: &[f64],
        k: usize,
        knobs: &Knobs,
    ) -> Result<Vec<Option<f64>>> {
        let scored = own.iter().enumerate().map(|(id, &score)| Scored { id, score }).collect();
        let order: Vec<usize> = order::top(scored, pool.len()).into_iter().map(|scored| scored.id).collect();
        let budget = knobs.rerank_budget.map_or(pool.len(), |budget| budget.max(k).min(pool.len()));
        let mut logits = vec![None; pool.len()];
        for places in [&order[..budget], &order[budget..]] {
            let convinced = |logit: &Option<f64>| logit.is_some_and(|logit| logit >= knobs.rerank_threshold);
            if places.is_empty() || logits.iter().any(convinced) {
                break;
            }
            let text = |&place: &usize| {
                let candidate = pool[place];
                Ok(self.scope.place(candidate)?.store.template.text(&self.scope.turn(candidate)?))
            };
            let texts = places.iter().map(text).collect::<Result<Vec<String>>>()?;
            let read = reranker.score(self.query.text, &texts.iter().map(String::as_str).collect::<Vec<_>>())?;
            places.iter().zip(read).for_each(|(&place, logit)| logits[place] = Some(logit));
        }
        Ok(logits)
    }

    /// The score of each member of the pool in its conversation. The turns around it are read for the best `looked_around` by
    /// `own`, their own evidence; the others are taken as if nothing was said around them.
    fn in_conversation(
        &self,
        pool: &[Candidate],
        own: &[f64],
        looked_around: usize,
        examined: &mut Examined,
        weights: &[f64],
        knobs: &Knobs,
    ) -> Result<Vec<f64>> {
        let mut rows: HashMap<Candidate, usize> = pool.iter().copied().zip(0..).collect();
        let mut around: Vec<Vec<Candidate>> = vec![Vec::new(); pool.len()];
        let mut before: Vec<Option<Candidate>> = vec![None; pool.len()];
        let mut unread = Vec::new();
        if knobs.priors.look_around() {
            let scored = own.iter().enumerate().map(|(id, &score)| Scored { id, score }).collect();
            for Scored { id: place, .. } in order::top(scored, looked_around) {
                for side in [Side::Before, Side::After] {
                    let next = |&candidate: &Candidate| self.scope.neighbour(candidate, side);
                    around[place].extend(successors(next(&pool[place]), next).take(REACH));
                }
                before[place] = self.scope.neighbour(pool[place], Side::Before);
                for &neighbour in &around[place] {
                    let row = pool.len() + unread.len();
                    if *rows.entry(neighbour).or_insert(row) == row {
                        unread.push(neighbour);
                    }
                }
            }
        }
        let more = self.examine(&unread, 0)?;
        examined.evidence.extend(more.evidence);
        examined.traits.extend(more.traits);
        let (tokens, best) = (weights.len(), examined.evidence.rows(knobs.token_rule.floored()));
        let met = |row: usize| Met { best: &best[row * tokens..(row + 1) * tokens], traits: examined.traits[row] };
        let known = |candidate: &Candidate| rows.get(candidate).map(|&row| met(row));
        let score = |place: usize| {
            let before = before[place].as_ref().and_then(known);
            conversation::score(met(place), before, around[place].iter().filter_map(known), weights, &knobs.priors)
        };
        Ok((0..pool.len()).map(score).collect())
    }
}
