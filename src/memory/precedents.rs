//! What questions like the one that is asked say of its candidates.

use std::collections::HashMap;
use std::sync::Arc;

use super::experience::{Experience, Past};
use super::knobs::Knobs;
use super::rerank::Query;
use super::scope::{Candidate, Scope};
use crate::error::Result;
use crate::model::encoder::{Encoder, Piece};
use crate::rank::feedback::carry_over;
use crate::rank::kernel::dot;
use crate::rank::likeness::{likeness, shared};
use crate::rank::precedent::{Member, Precedent};
use crate::rank::weight::inverse_document_frequency;

/// Of the turns that may be ranked.
#[derive(Default)]
pub struct Precedents {
    /// What they are worth by what was said of them as answers, −1 to 1, where anything was.
    pub feedback: HashMap<Candidate, f64>,
    /// What was found for the likest question that was put otherwise.
    pub likest: Option<Precedent<Candidate>>,
    /// Whether that moves the order: not where it did harm in a store of the scope.
    pub apply: bool,
}

impl Precedents {
    /// `stores` has the experience of each store of the scope.
    pub fn of(
        scope: &Scope,
        stores: &[Arc<Experience>],
        encoder: &Encoder,
        query: &Query,
        knobs: &Knobs,
    ) -> Result<Self> {
        let apply = !(knobs.watch && stores.iter().any(|experience| experience.of_order().harmful()));
        let mut precedents = Self { apply, ..Self::default() };
        let mut likest: (f64, &str) = (0.0, "");
        for (number, experience) in stores.iter().enumerate() {
            let mut judged = Vec::new();
            for past in experience.pasts() {
                let Some((cosine, shared)) = alike(scope, encoder, query, past, knobs)? else { continue };
                let likeness = |thresholds| likeness(cosine, shared, thresholds);
                judged.push((likeness(knobs.feedback_likeness), past.verdicts.as_slice()));
                let likeness = likeness(knobs.precedent_likeness);
                // The same question found what it would find now: that says nothing new.
                if likeness >= likest.0 && past.query != query.text && !past.pool.is_empty() {
                    likest = (likeness, &past.query);
                }
            }
            let said = carry_over(judged.into_iter().filter(|(likeness, _)| *likeness > 0.0)).into_iter();
            precedents.feedback.extend(said.filter_map(|(turn, worth)| Some((scope.candidate(number, turn)?, worth))));
        }
        let (likeness, query) = likest;
        if likeness > 0.0 {
            // In each store that it was asked of.
            let pools =
                stores.iter().enumerate().filter_map(|(number, experience)| Some((number, experience.past(query)?)));
            let members = pools.flat_map(|(number, past)| {
                past.pool.iter().filter_map(move |&Member { id, plain, learned }| {
                    Some(Member { id: scope.candidate(number, id)?, plain, learned })
                })
            });
            precedents.likest = Precedent::new(likeness, members);
        }
        Ok(precedents)
    }

    /// What a candidate gains from what was found for the likest question, by its final score in standard deviations.
    pub fn found(&self, candidate: &Candidate, score: f64) -> f64 {
        self.likest.as_ref().map_or(0.0, |likest| likest.worth(candidate, score))
    }

    /// By how much a candidate's final score is moved, both in standard deviations.
    pub fn bonus(&self, candidate: &Candidate, score: f64, knobs: &Knobs) -> f64 {
        let said = self.feedback.get(candidate).copied().unwrap_or_default();
        knobs.feedback_bonus * said + knobs.precedent_bonus * self.found(candidate, score)
    }
}

/// Cosine and share of words in common of a question and one asked before; `None` if they cannot be alike for anything.
fn alike(scope: &Scope, encoder: &Encoder, query: &Query, past: &Past, knobs: &Knobs) -> Result<Option<(f64, f64)>> {
    // Of another width: asked under another encoder.
    if past.embedding.len() != query.embedding.len() {
        return Ok(None);
    }
    let cosine = f64::from(dot(&query.embedding, &past.embedding));
    let lends = cosine > knobs.precedent_likeness.cosine && !past.pool.is_empty();
    let judged = cosine > knobs.feedback_likeness.cosine && !past.verdicts.is_empty();
    if !(lends || judged) {
        return Ok(None);
    }
    let weight = |piece: Piece| inverse_document_frequency(scope.size(), scope.containing(piece));
    Ok(Some((cosine, shared(&query.pieces, past.pieces(encoder)?, weight))))
}
