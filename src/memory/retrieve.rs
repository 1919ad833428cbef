//! Retrieval: sources, fuse, suppress, rerank, rows; then learn.

use std::collections::HashMap;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{Engine, now};
use super::knobs::{Fusion, Knobs};
use super::learn::{self, Lesson};
use super::models::ModelSettings;
use super::rerank::{Query, Verdicts, judge};
use super::scope::{Candidate, Place, Scope, StoreChoice};
use crate::error::{Error, Result};
use crate::index::{Slot, vectors, words};
use crate::rank::fuse::{moments, reciprocal_rank, weighted_z};
use crate::rank::order::{self, Scored, ranks};
use crate::rank::suppression::PoolMember;
use crate::store::learning::ClusterId;
use crate::store::turns::{Filter, Turn};

/// What is asked, but for the question itself.
#[derive(Clone, Debug)]
pub struct Request {
    pub k: usize,
    pub stores: StoreChoice,
    pub filter: Filter,
    /// `None`: with a reranker if one is installed.
    pub rerank: Option<bool>,
    /// Fail, rather than say so in a note, when `rerank` asks for a reranker that is not there.
    pub require_reranker: bool,
    pub learn: bool,
    pub progress: bool,
}

/// Who asks, under which settings.
pub struct Asker<'a> {
    pub engine: &'a Engine,
    pub search_path: &'a str,
    pub models: &'a ModelSettings,
    pub knobs: &'a Knobs,
}

/// A memory that answers, best first, and how it came to its rank.
#[derive(Clone, Debug)]
pub struct Answer {
    pub rank: usize,
    pub turn: Turn,
    pub store: String,
    pub score: f64,
    /// Known under this id to `memory_feedback`, if the retrieval was learned from.
    pub retrieval: Uuid,
    pub trace: Trace,
}

/// The numbers behind a rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace {
    pub words: Option<Standing>,
    pub vectors: Option<Standing>,
    pub fused: f64,
    pub cluster: ClusterId,
    pub suppression: f64,
    /// Rank after the penalty, before reranking: the paper's r_init.
    pub pool_rank: usize,
    pub evidence: f64,
    pub reranker: Option<f64>,
}

/// A rank in a list, from 1, with the score there.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub rank: usize,
    pub score: f64,
}

/// Answers each question with its best memories: min(k, turns that pass the filter) of them.
///
/// The stores are synchronised once for all questions. Learning comes last, in transactions of its own; if it fails, the answers
/// stand.
pub fn retrieve(
    asker: &Asker,
    connection: &Connection,
    questions: &[&str],
    request: &Request,
) -> Result<Vec<Vec<Answer>>> {
    let encoder = asker.models.encoder()?;
    let reranker = match request.rerank {
        Some(false) => None,
        wanted => {
            let reranker = asker.models.reranker()?;
            if reranker.is_none() && wanted == Some(true) && request.require_reranker {
                return Err(Error::NoReranker);
            }
            reranker
        }
    };
    let scope = Scope::open(
        asker.engine,
        connection,
        &request.stores,
        asker.search_path,
        &encoder,
        &request.filter,
        request.progress,
        now(),
    )?;
    let mut answers = Vec::with_capacity(questions.len());
    for question in questions {
        if question.trim().is_empty() {
            answers.push(Vec::new());
            continue;
        }
        let (pieces, encoded) = encoder.encode_query(question)?;
        let query = Query { text: question, pieces, encoded };
        let (words, vectors) = sources(&scope, &query, asker.knobs.candidates.max(request.k))?;
        let fused = fuse(&words, &vectors, asker.knobs);
        let pool = suppress(connection, &scope, &query, fused, request.k, asker.knobs)?;
        let candidates: Vec<Candidate> = pool.members.iter().map(|scored| scored.id).collect();
        let verdicts = judge(&scope, &query, &candidates, reranker.as_deref(), asker.knobs)?;
        let order = final_order(&candidates, &verdicts);
        let retrieval = Uuid::now_v7();
        let lists = Lists { words: ranked(&words), vectors: ranked(&vectors) };
        answers.push(rows(&scope, &pool, &verdicts, &order, &lists, retrieval, request.k)?);
        if request.learn {
            let members = members(&candidates, &verdicts, &order);
            learn::learn(
                connection,
                &scope,
                &Lesson { retrieval, query: &query, members: &members, cues: &pool.clusters },
                asker.knobs,
            );
        }
    }
    Ok(answers)
}

/// The best `n` by words and by vectors, of the turns that pass the filter.
fn sources(scope: &Scope, query: &Query, n: usize) -> Result<(Vec<Scored<Candidate>>, Vec<Scored<Candidate>>)> {
    let indexes: Vec<_> = scope.places.iter().map(|place| place.snapshot.words()).collect();
    let by_words = words::search(&indexes, query.text)?;
    let by_vectors = scope.places.iter().map(|place| {
        let memories = place.snapshot.memories().filter(|(slot, _)| place.allows(*slot));
        vectors::scan(&query.encoded.embedding, memories.map(|(slot, memory)| (slot, memory.embedding.as_slice())))
    });
    let by_vectors = gather(scope, by_vectors);
    Ok((order::top(gather(scope, by_words), n), order::top(by_vectors, n)))
}

/// One list of candidates out of a list a store, without what the filter keeps out.
fn gather(scope: &Scope, by_store: impl IntoIterator<Item = Vec<Scored<Slot>>>) -> Vec<Scored<Candidate>> {
    let candidates = scope.places.iter().zip(by_store).enumerate().flat_map(|(store, (place, hits))| {
        let allowed = hits.into_iter().filter(move |hit| place.allows(hit.id));
        allowed.filter_map(move |hit| {
            let turn = place.snapshot.memory(hit.id)?.turn.id;
            Some(Scored { id: Candidate { turn, store, slot: hit.id }, score: hit.score })
        })
    });
    candidates.collect()
}

fn fuse(words: &[Scored<Candidate>], vectors: &[Scored<Candidate>], knobs: &Knobs) -> Vec<Scored<Candidate>> {
    match knobs.fusion {
        Fusion::ReciprocalRank => reciprocal_rank(&[words, vectors], knobs.rrf_k),
        Fusion::ZScore => weighted_z(&[(words, knobs.word_weight), (vectors, 1.0 - knobs.word_weight)]),
    }
}

/// The candidates that are reranked, in the order r_init.
struct Pool {
    /// With the scores s̃ after the penalty.
    members: Vec<Scored<Candidate>>,
    /// The scores before it, and the suppression that was held against each.
    before: HashMap<Candidate, (f64, f64)>,
    /// The cluster of the query in each store of the scope.
    clusters: Vec<learn::QueryCue>,
}

/// s̃ = s − α · s_{m,c(q)} (the lethe paper), in the unit of the penalty scale; then the best P, and never fewer than k.
fn suppress(
    connection: &Connection,
    scope: &Scope,
    query: &Query,
    fused: Vec<Scored<Candidate>>,
    k: usize,
    knobs: &Knobs,
) -> Result<Pool> {
    let clusters = scope
        .places
        .iter()
        .map(|place| learn::cue(connection, place, &query.encoded.embedding))
        .collect::<Result<Vec<_>>>()?;
    let held = held_against(connection, scope, &clusters, knobs)?;
    let (_, deviation) = moments(&fused.iter().map(|scored| scored.score).collect::<Vec<_>>());
    let unit = knobs.suppression_alpha * knobs.penalty.unit(deviation);
    let mut before = HashMap::with_capacity(fused.len());
    let penalised = fused
        .into_iter()
        .map(|Scored { id, score }| {
            let suppression = held.get(&(id.store, id.turn)).copied().unwrap_or(0.0);
            before.insert(id, (score, suppression));
            Scored { id, score: score - unit * suppression }
        })
        .collect::<Vec<_>>();
    let size = knobs.pool.map_or(penalised.len(), |pool| pool.max(k));
    Ok(Pool { members: order::top(penalised, size), before, clusters })
}

/// The suppression of every suppressed turn in the query's cluster, as it counts now.
fn held_against(
    connection: &Connection,
    scope: &Scope,
    clusters: &[learn::QueryCue],
    knobs: &Knobs,
) -> Result<HashMap<(usize, Uuid), f64>> {
    let now = now();
    let mut held = HashMap::new();
    for (store, (place, cue)) in scope.places.iter().zip(clusters).enumerate() {
        for entry in learn::suppressed(connection, place, cue)? {
            held.insert((store, entry.turn), knobs.retention.read(entry.score, learn::days(entry.updated_at, now)));
        }
    }
    Ok(held)
}

/// Places in the pool, best first by the final score.
fn final_order(candidates: &[Candidate], verdicts: &Verdicts) -> Vec<usize> {
    let scored = candidates.iter().zip(&verdicts.score).enumerate();
    let mut list: Vec<Scored<(Candidate, usize)>> =
        scored.map(|(place, (&candidate, &score))| Scored { id: (candidate, place), score }).collect();
    order::sort(&mut list);
    list.into_iter().map(|scored| scored.id.1).collect()
}

fn members(candidates: &[Candidate], verdicts: &Verdicts, order: &[usize]) -> Vec<(Candidate, PoolMember)> {
    let mut members: Vec<(Candidate, PoolMember)> = candidates
        .iter()
        .zip(&verdicts.logit)
        .enumerate()
        .map(|(place, (&candidate, &reranked))| {
            (candidate, PoolMember { initial_rank: place + 1, final_rank: 0, reranked })
        })
        .collect();
    order.iter().enumerate().for_each(|(rank, &place)| members[place].1.final_rank = rank + 1);
    members
}

/// Where each candidate stood in the sources.
struct Lists {
    words: HashMap<Candidate, Standing>,
    vectors: HashMap<Candidate, Standing>,
}

fn ranked(list: &[Scored<Candidate>]) -> HashMap<Candidate, Standing> {
    let ranks = ranks(list);
    list.iter()
        .filter_map(|scored| Some((scored.id, Standing { rank: *ranks.get(&scored.id)?, score: scored.score })))
        .collect()
}

fn rows(
    scope: &Scope,
    pool: &Pool,
    verdicts: &Verdicts,
    order: &[usize],
    lists: &Lists,
    retrieval: Uuid,
    k: usize,
) -> Result<Vec<Answer>> {
    let row = |(rank, &place): (usize, &usize)| {
        let candidate = pool.members[place].id;
        let (fused, suppression) = pool.before.get(&candidate).copied().unwrap_or_default();
        let at: &Place = &scope.places[candidate.store];
        Ok(Answer {
            rank: rank + 1,
            turn: scope.memory(candidate)?.turn.clone(),
            store: at.store.database.name.clone(),
            score: verdicts.score[place],
            retrieval,
            trace: Trace {
                words: lists.words.get(&candidate).copied(),
                vectors: lists.vectors.get(&candidate).copied(),
                fused,
                cluster: pool.clusters[candidate.store].cluster,
                suppression,
                pool_rank: place + 1,
                evidence: verdicts.evidence[place],
                reranker: verdicts.reranker.as_ref().map(|logits| logits[place]),
            },
        })
    };
    order.iter().take(k).enumerate().map(row).collect()
}
