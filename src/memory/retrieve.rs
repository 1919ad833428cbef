//! Retrieval: sources, fuse, suppress, rerank, rows; then learn.

use std::collections::HashMap;
use std::sync::Arc;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::now;
use super::knobs::{Fusion, Knobs};
use super::learn::{self, Lesson};
use super::request::{Asker, Request};
use super::rerank::{Query, Verdicts, judge};
use super::scope::{Candidate, Place, Scope};
use crate::error::{Error, Result};
use crate::index::{Slot, vectors, words};
use crate::model::encoder::Encoder;
use crate::model::reranker::Reranker;
use crate::rank::fuse::{moments, reciprocal_rank, weighted_z};
use crate::rank::order::{self, Scored};
use crate::rank::suppression::PoolMember;
use crate::store::learning::ClusterId;
use crate::store::turns::Turn;

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
/// The stores are synchronised once for all questions. A question without anything in it has no answers.
pub fn retrieve(
    asker: &Asker,
    connection: &Connection,
    questions: &[&str],
    request: &Request,
) -> Result<Vec<Vec<Answer>>> {
    let encoder = asker.models.encoder()?;
    let reranker = reranker(asker, request)?;
    let scope = Scope::open(asker, connection, request, &encoder, now())?;
    let answer = |question: &&str| match question.trim() {
        "" => Ok(Vec::new()),
        _ => answer(asker, connection, request, &scope, &encode(&encoder, question)?, reranker.as_deref()),
    };
    questions.iter().map(answer).collect()
}

fn reranker(asker: &Asker, request: &Request) -> Result<Option<Arc<Reranker>>> {
    if request.rerank == Some(false) {
        return Ok(None);
    }
    match asker.models.reranker()? {
        None if request.rerank == Some(true) && request.require_reranker => Err(Error::NoReranker),
        reranker => Ok(reranker),
    }
}

fn encode<'a>(encoder: &Encoder, question: &'a str) -> Result<Query<'a>> {
    let (pieces, encoded) = encoder.encode_query(question)?;
    Ok(Query { text: question, pieces, encoded })
}

/// The pipeline. Learning comes last, in transactions of its own; if it fails, the answers stand.
fn answer(
    asker: &Asker,
    connection: &Connection,
    request: &Request,
    scope: &Scope,
    query: &Query,
    reranker: Option<&Reranker>,
) -> Result<Vec<Answer>> {
    let retrieval = Uuid::now_v7();
    let sources = search(scope, query, asker.knobs.candidates.max(request.k))?;
    let fused = fuse(&sources, asker.knobs);
    let pool = suppress(connection, scope, query, fused, request.k, asker.knobs)?;
    let ranking = rerank(scope, query, &pool, reranker, asker.knobs)?;
    let answers = rows(scope, &sources, &pool, &ranking, retrieval, request.k)?;
    if request.learn {
        let lesson = Lesson { retrieval, query, members: &ranking.members(&pool) };
        learn::learn(connection, scope, &lesson, asker.knobs);
    }
    Ok(answers)
}

/// What each source found, best first.
struct Sources {
    words: Vec<Scored<Candidate>>,
    vectors: Vec<Scored<Candidate>>,
}

/// The best `n` by words and by vectors, of the turns that pass the filter.
fn search(scope: &Scope, query: &Query, n: usize) -> Result<Sources> {
    let indexes: Vec<_> = scope.places.iter().map(|place| place.snapshot.words()).collect();
    let by_words = words::search(&indexes, query.text)?;
    let by_vectors = scope.places.iter().map(|place| {
        let memories = place.snapshot.memories().filter(|(slot, _)| place.allows(*slot));
        vectors::scan(&query.encoded.embedding, memories.map(|(slot, memory)| (slot, memory.embedding.as_slice())))
    });
    Ok(Sources { words: order::top(gather(scope, by_words), n), vectors: order::top(gather(scope, by_vectors), n) })
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

fn fuse(sources: &Sources, knobs: &Knobs) -> Vec<Scored<Candidate>> {
    let Sources { words, vectors } = sources;
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
        .map(|place| learn::cue(connection, &place.store, &query.encoded.embedding))
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

/// The pool in its final order.
struct Ranking {
    verdicts: Verdicts,
    /// Places in the pool, best first.
    order: Vec<usize>,
}

fn rerank(scope: &Scope, query: &Query, pool: &Pool, reranker: Option<&Reranker>, knobs: &Knobs) -> Result<Ranking> {
    let candidates: Vec<Candidate> = pool.members.iter().map(|scored| scored.id).collect();
    let verdicts = judge(scope, query, &candidates, reranker, knobs)?;
    let mut order: Vec<Scored<(Candidate, usize)>> = candidates
        .iter()
        .zip(&verdicts.score)
        .enumerate()
        .map(|(place, (&candidate, &score))| Scored { id: (candidate, place), score })
        .collect();
    order::sort(&mut order);
    Ok(Ranking { verdicts, order: order.into_iter().map(|scored| scored.id.1).collect() })
}

impl Ranking {
    /// The pool in its initial order, with what became of each member.
    fn members(&self, pool: &Pool) -> Vec<(Candidate, PoolMember)> {
        let mut final_rank = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(rank, &place)| final_rank[place] = rank + 1);
        let member = |(place, (scored, &reranked)): (usize, (&Scored<Candidate>, &f64))| {
            (scored.id, PoolMember { initial_rank: place + 1, final_rank: final_rank[place], reranked })
        };
        pool.members.iter().zip(&self.verdicts.logit).enumerate().map(member).collect()
    }
}

/// Where each candidate stands in a list.
fn standings(best_first: &[Scored<Candidate>]) -> HashMap<Candidate, Standing> {
    let standing =
        |(place, scored): (usize, &Scored<Candidate>)| (scored.id, Standing { rank: place + 1, score: scored.score });
    best_first.iter().enumerate().map(standing).collect()
}

fn rows(
    scope: &Scope,
    sources: &Sources,
    pool: &Pool,
    ranking: &Ranking,
    retrieval: Uuid,
    k: usize,
) -> Result<Vec<Answer>> {
    let (words, vectors) = (standings(&sources.words), standings(&sources.vectors));
    let Ranking { verdicts, order } = ranking;
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
                words: words.get(&candidate).copied(),
                vectors: vectors.get(&candidate).copied(),
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
