//! Trains a store's query adapter on the answers that were used.

use std::collections::HashMap;
use std::sync::Arc;

use duckdb::Connection;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::engine::{Store, now};
use super::experience::Past;
use super::interrupt::Interrupt;
use super::knobs::AdapterChoice;
use super::progress;
use super::request::{Asker, Request, StoreChoice};
use super::rerank::{Query, weights};
use super::retrieve::pool;
use super::scope::{Candidate, Scope};
use crate::error::{Error, Result};
use crate::model::encoder::Encoder;
use crate::rank::adapter::Adapter;
use crate::rank::codes::Codes;
use crate::rank::training::{Example, Schedule, ndcg, train};
use crate::rank::watch::mean_and_error;
use crate::store::adapters::{self, StoredAdapter};
use crate::store::turns::Filter;

/// r and τ as in the seed ("Beyond the Final Embedding"), the rest as it did best from LoCoMo's first five conversations to its
/// other five (docs/learning.md).
const RANK: usize = 32;
const SEED: u64 = 0x6c65_7468_6500_0002;
const SCHEDULE: Schedule =
    Schedule { temperature: 0.07, learning_rate: 1e-3, batch: 16, epochs: 12, patience: 2, seed: SEED, threads: 1 };

/// One question in so many is held out, by its text: the same ones whenever the adapter is trained again.
const HELD_OUT: u8 = 5;

/// With fewer questions to learn from, or to judge by, nothing is trained.
const LEAST_LEARNED: usize = 24;
const LEAST_HELD_OUT: usize = 6;

/// Where the adapters are compared.
const DEPTH: usize = 10;

/// What came of a training.
pub struct Adaptation {
    /// Questions with an answer that was used, of both kinds.
    pub learned: usize,
    pub held_out: usize,
    pub epochs: usize,
    /// Mean NDCG@10 of the questions held out, with what was in force before and with what was trained; `None` when there are
    /// too few questions.
    pub measured: Option<(f64, f64)>,
    /// Whether what was trained is in force now.
    pub used: bool,
    pub note: Option<String>,
}

/// Trains on every question that was answered by a turn some feedback called `used`, and puts the adapter in force if it answers
/// the questions held out better, by more than the standard error of the difference.
pub fn adapt(asker: &Asker, connection: &Connection, store: &Store, progress: bool) -> Result<Adaptation> {
    store.database.require_writable("memory_adapt")?;
    let experience = store.experience(connection)?;
    let mut questions: Vec<&Past> = experience.pasts().iter().filter(|past| past.was_answered()).collect();
    // Whenever they were asked, the same feedback gives the same adapter.
    questions.sort_by(|a, b| a.query.cmp(&b.query));
    let (held_out, learned): (Vec<&Past>, Vec<&Past>) =
        questions.into_iter().partition(|past| is_held_out(&past.query));
    if learned.len() < LEAST_LEARNED || held_out.len() < LEAST_HELD_OUT {
        let note = format!(
            "too few questions with feedback: {LEAST_LEARNED} to learn from and {LEAST_HELD_OUT} to judge by are wanted; \
             one in {HELD_OUT} is held out by its text"
        );
        let (learned, held_out) = (learned.len(), held_out.len());
        return Ok(Adaptation { learned, held_out, epochs: 0, measured: None, used: false, note: Some(note) });
    }
    let encoder = asker.models.encoder()?;
    let scope = Scope::open(asker, connection, &whole(store, progress), &encoder, now())?;
    let place = scope.places.first().ok_or_else(|| Error::Internal("a scope without its store".into()))?;
    let in_force = place.store.adapter(connection, &encoder, asker.knobs.adapter)?;
    let start = match (encoder.adapter(), asker.knobs.adapter) {
        (Some(adapter), AdapterChoice::Auto | AdapterChoice::Encoder) => (**adapter).clone(),
        _ => Adapter::untrained(encoder.identity().dim, RANK, SEED),
    };

    // The questions are encoded first; Ctrl-C meanwhile ends the training before it begins.
    let interrupt = Interrupt::watch()?;
    let mut material = Material { asker, scope: &scope, codes: HashMap::new() };
    let learned = material.examples(&encoder, &learned)?;
    let held_out = material.examples(&encoder, &held_out)?;
    let schedule = Schedule { threads: asker.models.threads, ..SCHEDULE };
    let bar = progress::bar(schedule.epochs, "epochs", &format!("adapting {}", store.database.name), progress);
    let trained = train(start, &learned, &held_out, &schedule, |epoch| {
        bar.set_position(epoch.number as u64);
        if interrupt.came() { Err(Error::InterruptedTraining) } else { Ok(()) }
    })?;
    bar.finish_and_clear();

    let of = |adapter: Option<&Adapter>| ndcg(adapter, &held_out, DEPTH, schedule.threads);
    let (before, after) = (of(in_force.as_deref()), of(Some(&trained.adapter)));
    let gains: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    let (gain, error) = mean_and_error(&gains);
    let measured = (mean_and_error(&before).0, mean_and_error(&after).0);
    let used = gain > error;
    if used {
        let measured = serde_json::json!({
            "held_out": held_out.len(), "epochs": trained.epochs, "ndcg10_before": measured.0, "ndcg10_after": measured.1,
        });
        let stored = StoredAdapter {
            adapter: Arc::new(trained.adapter),
            questions: u32::try_from(learned.len()).unwrap_or(u32::MAX),
            measured: measured.to_string(),
        };
        let _alone = store.learning()?;
        adapters::replace(connection, &store.database, &encoder.identity().id, &stored)?;
    }
    let note = (!used).then(|| {
        format!("not used: it wins {gain:.4} on the questions held out, and had to win more than its standard error {error:.4}")
    });
    let (learned, held_out) = (learned.len(), held_out.len());
    Ok(Adaptation { learned, held_out, epochs: trained.epochs, measured: Some(measured), used, note })
}

/// All of one store.
fn whole(store: &Store, progress: bool) -> Request {
    Request {
        k: 0,
        stores: StoreChoice::Named(vec![store.database.name.clone()]),
        filter: Filter::default(),
        rerank: Some(false),
        require_reranker: false,
        learn: false,
        progress,
    }
}

fn is_held_out(query: &str) -> bool {
    Sha256::digest(query.as_bytes())[0] % HELD_OUT == 0
}

/// What examples are made of. The tokens of a turn are kept once, however many questions have it among their candidates.
struct Material<'a> {
    asker: &'a Asker<'a>,
    scope: &'a Scope,
    codes: HashMap<Candidate, Arc<Codes>>,
}

impl Material<'_> {
    /// Each question with the pool it would be answered from, and the turns that were used.
    fn examples(&mut self, encoder: &Encoder, questions: &[&Past]) -> Result<Vec<Example>> {
        let texts: Vec<&str> = questions.iter().map(|past| past.query.as_str()).collect();
        let encoded = encoder.encode_queries(&texts)?;
        let mut examples = Vec::with_capacity(questions.len());
        for (past, (pieces, encoded)) in questions.iter().zip(encoded) {
            let used: Vec<Uuid> = past.verdicts.iter().filter(|(_, used)| *used).map(|(turn, _)| *turn).collect();
            let states = encoded.states.clone();
            let query = Query::new(&past.query, pieces, encoded, &[]);
            let mut candidates = pool(self.scope, self.asker.knobs, &query, self.asker.models.threads)?;
            for candidate in used.iter().filter_map(|&turn| self.scope.candidate(0, turn)) {
                if !candidates.contains(&candidate) {
                    candidates.push(candidate);
                }
            }
            let relevant: Vec<bool> = candidates.iter().map(|candidate| used.contains(&candidate.turn)).collect();
            // A turn that was used may have been forgotten since.
            if relevant.contains(&true) {
                let weights = weights(self.scope, &query, self.asker.knobs);
                let candidates =
                    candidates.into_iter().map(|candidate| self.codes(candidate)).collect::<Result<_>>()?;
                examples.push(Example { states, weights, candidates, relevant });
            }
        }
        Ok(examples)
    }

    fn codes(&mut self, candidate: Candidate) -> Result<Arc<Codes>> {
        if let Some(codes) = self.codes.get(&candidate) {
            return Ok(codes.clone());
        }
        let codes = Arc::new(self.scope.recall(candidate)?.tokens);
        self.codes.insert(candidate, codes.clone());
        Ok(codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_question_in_five_is_held_out() {
        let held_out = (0..1000).filter(|number| is_held_out(&format!("question {number}"))).count();
        assert!((160..240).contains(&held_out), "{held_out}");
    }
}
