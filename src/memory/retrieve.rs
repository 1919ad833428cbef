//! Retrieval: sources, fuse, suppress, rerank, rows; then learn.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{BySuppressed, now};
use super::experience::Experience;
use super::knobs::{Fusion, Knobs};
use super::learn::{self, Lesson};
use super::precedents::Precedents;
use super::request::{Asker, Request};
use super::rerank::{Query, Verdicts, judge};
use super::scope::{Candidate, Place, Scope, Shelf};
use crate::error::{Error, Result};
use crate::index::words::{self, WordQuery};
use crate::model::encoder::Encoder;
use crate::model::reranker::Reranker;
use crate::rank::fuse::{moments, reciprocal_rank, weighted_z};
use crate::rank::order::{self, Highest, Scored};
use crate::rank::parallel::in_parallel;
use crate::rank::precedent::Member;
use crate::rank::suppression::PoolMember;
use crate::store::learning::{ClusterId, Suppression};
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
    /// What feedback on questions like this one says of it, -1 to 1.
    pub feedback: f64,
    /// What was found for the likest question says of it, in standard deviations.
    pub precedent: f64,
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
/// The stores are synchronised once for all questions, which are answered side by side, and learned from when all are answered. A
/// question without anything in it has no answers.
pub fn retrieve(
    asker: &Asker,
    connection: &Connection,
    questions: &[&str],
    request: &Request,
) -> Result<Vec<Vec<Answer>>> {
    let encoder = asker.models.encoder()?;
    let reranker = reranker(asker, request)?;
    let scope = Scope::open(asker, connection, request, &encoder, now())?;
    let asked: Vec<&str> = questions.iter().copied().filter(|question| !question.trim().is_empty()).collect();
    let encoded = encoder.encode_queries(&asked)?;
    let adapters = scope.adapters(connection, &encoder, asker.knobs.adapter)?;
    let queries =
        asked.iter().zip(encoded).map(|(text, (pieces, encoded))| Query::new(text, pieces, encoded, &adapters));
    let experience = scope.experience(connection)?;
    let asked = queries.map(|query| Asked::new(connection, &scope, &experience, &encoder, query, asker.knobs));
    let asked = asked.collect::<Result<Vec<_>>>()?;

    // With few questions the threads share each of them, with many they share them out.
    let side_by_side = asked.len().min(asker.models.threads);
    let threads = asker.models.threads / side_by_side.max(1);
    let pipeline = Pipeline {
        scope: &scope,
        knobs: asker.knobs,
        reranker: reranker.as_deref(),
        k: request.k,
        threads,
        // What a filter left of the turns says nothing of the others.
        compared: request.learn && request.filter.is_empty(),
    };
    let answer = |asked: &Asked| pipeline.answer(asked);
    let parts = in_parallel(&asked, side_by_side, 1, |part| part.iter().map(answer).collect::<Result<Vec<_>>>());
    let answered: Vec<Answered> = match parts.into_iter().collect::<Result<Vec<_>>>() {
        // Found out only now, since token states are not read before they are wanted. Made anew from the tables it is whole.
        Err(error @ Error::Cache { .. }) => {
            for place in &scope.places {
                place.store.index()?.discard(error.to_string());
            }
            return retrieve(asker, connection, questions, request);
        }
        answered => answered?.into_iter().flatten().collect(),
    };
    if request.learn {
        let lesson = |(asked, answered)| {
            let (Asked { retrieval, query, .. }, Answered { members, pool, .. }): (&Asked, &Answered) =
                (asked, answered);
            Lesson { retrieval: *retrieval, query, members, pool }
        };
        // In transactions of its own; if it fails, the answers stand.
        let lessons: Vec<Lesson> = asked.iter().zip(&answered).map(lesson).collect();
        learn::learn(connection, &scope, &lessons, asker.knobs);
    }
    let mut answered = answered.into_iter();
    let of_question = |question: &&str| match question.trim() {
        "" => Vec::new(),
        _ => answered.next().map_or_else(Vec::new, |answered| answered.answers),
    };
    Ok(questions.iter().map(of_question).collect())
}

/// The candidates of a question, best first, before anything that was learned.
pub fn pool(scope: &Scope, knobs: &Knobs, query: &Query, threads: usize) -> Result<Vec<Candidate>> {
    let pipeline = Pipeline { scope, knobs, reranker: None, k: 0, threads, compared: false };
    Ok(pipeline.fuse(&pipeline.search(query)?).into_iter().map(|scored| scored.id).collect())
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

/// A question, and what was learned about questions like it and of its kind.
struct Asked<'a> {
    retrieval: Uuid,
    query: Query<'a>,
    precedents: Precedents,
    /// In each store of the scope.
    cues: Vec<learn::QueryCue>,
    suppression: Vec<Arc<BySuppressed>>,
    /// What of it moves the order.
    applied: Learned,
}

impl<'a> Asked<'a> {
    fn new(
        connection: &Connection,
        scope: &Scope,
        experience: &[Arc<Experience>],
        encoder: &Encoder,
        query: Query<'a>,
        knobs: &Knobs,
    ) -> Result<Self> {
        let precedents = Precedents::of(scope, experience, encoder, &query, knobs)?;
        let cue = |place: &Place| learn::cue(connection, &place.store, &query.embedding);
        let cues = scope.places.iter().map(cue).collect::<Result<Vec<_>>>()?;
        let of_cue = |(place, cue): (&Place, &learn::QueryCue)| place.store.suppression(connection, cue.cluster);
        let suppression = scope.places.iter().zip(&cues).map(of_cue).collect::<Result<Vec<_>>>()?;
        let mut applied = Learned { precedents: precedents.apply, suppression: true };
        for ((place, experience), suppressed) in scope.places.iter().zip(experience).zip(&suppression) {
            let harmful = experience.of_suppression().harmful();
            applied.suppression &= !(knobs.watch && (harmful || learn::saturated(suppressed, place.snapshot.size())));
        }
        Ok(Self { retrieval: Uuid::now_v7(), query, precedents, cues, suppression, applied })
    }

    /// Whether anything was learned that could change its answer.
    fn taught(&self) -> bool {
        let Precedents { feedback, likest, .. } = &self.precedents;
        !(feedback.is_empty() && likest.is_none() && self.suppression.iter().all(|suppressed| suppressed.is_empty()))
    }
}

/// Which of what was learned is made use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Learned {
    /// What is known of questions like the one asked.
    precedents: bool,
    /// What is suppressed for its kind.
    suppression: bool,
}

impl Learned {
    const ALL: Self = Self { precedents: true, suppression: true };
    const NOTHING: Self = Self { precedents: false, suppression: false };
}

/// What became of a question.
struct Answered {
    answers: Vec<Answer>,
    /// The pool in its initial order, to be learned from.
    members: Vec<(Candidate, PoolMember)>,
    /// The pools with and without what was learned, to be remembered.
    pool: Vec<Member<Candidate>>,
}

/// The stages, and what all of them need. They read the snapshots and nothing else.
struct Pipeline<'a> {
    scope: &'a Scope,
    knobs: &'a Knobs,
    reranker: Option<&'a Reranker>,
    k: usize,
    threads: usize,
    /// Whether it is to be found out what the answer would be without what was learned.
    compared: bool,
}

impl Pipeline<'_> {
    fn answer(&self, asked: &Asked) -> Result<Answered> {
        let found = self.search(&asked.query)?;
        let pool = self.suppress(asked, &found, asked.applied);
        let ranking = self.rerank(asked, &pool)?;
        let answers = self.rows(asked, &found, &pool, &ranking)?;
        let compared = if self.compared { self.compare(asked, &found, &pool, &ranking)? } else { Vec::new() };
        Ok(Answered { answers, members: ranking.members(&pool), pool: compared })
    }

    /// The best by words and by vectors, of the turns that pass the filter.
    fn search(&self, query: &Query) -> Result<Sources> {
        let n = self.knobs.candidates.max(self.k);
        let shelves = self.scope.shelves();
        let words = self.scope.places.iter().flat_map(|place| place.snapshot.segments()).map(|segment| segment.words());
        let words = WordQuery::new(query.text, words)?;
        let parts = in_parallel(&shelves, self.threads, WORTH_A_THREAD, |shelves| -> Result<Sources> {
            Ok(Sources {
                words: by_words(shelves, &words, n)?,
                vectors: by_vectors(shelves, query, n),
                used: Vec::new(),
            })
        });
        let (mut words, mut vectors) = (Vec::new(), Vec::new());
        for part in parts {
            let part = part?;
            words.extend(part.words);
            vectors.extend(part.vectors);
        }
        Ok(Sources { words: order::top(words, n), vectors: order::top(vectors, n), used: Vec::new() })
    }

    fn fuse(&self, Sources { words, vectors, used }: &Sources) -> Vec<Scored<Candidate>> {
        let word_weight = self.knobs.word_weight;
        match self.knobs.fusion {
            Fusion::ReciprocalRank => reciprocal_rank(&[words, vectors, used], self.knobs.rrf_k),
            Fusion::ZScore => weighted_z(&[(words, word_weight), (vectors, 1.0 - word_weight), (used, 1.0)]),
        }
    }

    /// s̃ = s − α · s_{m,c(q)} (the lethe paper), in the unit of the penalty scale; then the best P, and never fewer than k.
    fn suppress(&self, asked: &Asked, found: &Sources, learned: Learned) -> Pool {
        let (knobs, now) = (self.knobs, now());
        let fused = match learned.precedents {
            true => self.fuse(&found.with(&asked.precedents.feedback)),
            false => self.fuse(found),
        };
        let counts = |entry: &Suppression| knobs.retention.read(entry.score, learn::days(entry.updated_at, now));
        let (_, deviation) = moments(&fused.iter().map(|scored| scored.score).collect::<Vec<_>>());
        let unit = if learned.suppression { knobs.suppression_alpha * knobs.penalty.unit(deviation) } else { 0.0 };
        let mut before = HashMap::with_capacity(fused.len());
        let penalised: Vec<Scored<Candidate>> = fused
            .into_iter()
            .map(|Scored { id, score }| {
                let suppression = asked.suppression[id.store].get(&id.turn).map_or(0.0, counts);
                before.insert(id, (score, suppression));
                Scored { id, score: score - unit * suppression }
            })
            .collect();
        let size = knobs.pool.map_or(penalised.len(), |pool| pool.max(self.k));
        Pool { members: order::top(penalised, size), before }
    }

    /// The reranker's order, moved by what is known of questions like this one.
    fn rerank(&self, asked: &Asked, pool: &Pool) -> Result<Ranking> {
        let candidates = pool.candidates();
        let verdicts = judge(self.scope, &asked.query, &candidates, self.k, self.reranker, self.knobs, self.threads)?;
        let finite: Vec<f64> = verdicts.score.iter().copied().filter(|score| score.is_finite()).collect();
        let (mean, deviation) = moments(&finite);
        let scale = Scale { mean, deviation };
        let moved = |(candidate, &score): (&Candidate, &f64)| match asked.applied.precedents {
            true => score + deviation * asked.precedents.bonus(candidate, scale.standardise(score), self.knobs),
            false => score,
        };
        let score: Vec<f64> = candidates.iter().zip(&verdicts.score).map(moved).collect();
        let placed = candidates.iter().zip(&score).enumerate();
        let mut order: Vec<Scored<(Candidate, usize)>> =
            placed.map(|(place, (&candidate, &score))| Scored { id: (candidate, place), score }).collect();
        order::sort(&mut order);
        let order = order.into_iter().map(|scored| scored.id.1).collect();
        Ok(Ranking { verdicts, scale, score, order })
    }

    /// Every candidate that is in the pool with what was learned, or would be without, with its final scores either way in standard
    /// deviations of the pool's.
    fn compare(
        &self,
        asked: &Asked,
        found: &Sources,
        pool: &Pool,
        ranking: &Ranking,
    ) -> Result<Vec<Member<Candidate>>> {
        let finite = |score: f64| Some(score as f32).filter(|score| score.is_finite());
        let members = |candidates: Vec<Candidate>, verdicts: &Verdicts| -> Vec<Member<Candidate>> {
            let member = |(id, &score): (Candidate, &f64)| {
                let plain = ranking.scale.standardise(score);
                let learned = plain + asked.precedents.bonus(&id, plain, self.knobs);
                Member { id, plain: finite(plain), learned: finite(learned) }
            };
            candidates.into_iter().zip(&verdicts.score).map(member).collect()
        };
        let mut compared = members(pool.candidates(), &ranking.verdicts);
        if !asked.taught() {
            return Ok(compared);
        }
        let within = |learned| -> HashSet<Candidate> {
            let other = (learned != asked.applied).then(|| self.suppress(asked, found, learned).candidates());
            other.unwrap_or_else(|| pool.candidates()).into_iter().collect()
        };
        let (with, without) = (within(Learned::ALL), within(Learned::NOTHING));
        let read: HashSet<Candidate> = compared.iter().map(|member| member.id).collect();
        let mut unread: Vec<Candidate> = with.union(&without).copied().filter(|id| !read.contains(id)).collect();
        unread.sort();
        let verdicts = judge(self.scope, &asked.query, &unread, 0, self.reranker, self.knobs, self.threads)?;
        compared.extend(members(unread, &verdicts));
        for member in &mut compared {
            member.plain = member.plain.filter(|_| without.contains(&member.id));
            member.learned = member.learned.filter(|_| with.contains(&member.id));
        }
        Ok(compared)
    }

    fn rows(&self, asked: &Asked, sources: &Sources, pool: &Pool, ranking: &Ranking) -> Result<Vec<Answer>> {
        let (words, vectors) = (standings(&sources.words), standings(&sources.vectors));
        let Ranking { verdicts, score, order, .. } = ranking;
        let row = |(rank, &place): (usize, &usize)| {
            let candidate = pool.members[place].id;
            let (fused, suppression) = pool.before.get(&candidate).copied().unwrap_or_default();
            Ok(Answer {
                rank: rank + 1,
                turn: self.scope.turn(candidate)?,
                store: self.scope.place(candidate)?.store.database.name.clone(),
                score: score[place],
                retrieval: asked.retrieval,
                trace: Trace {
                    words: words.get(&candidate).copied(),
                    vectors: vectors.get(&candidate).copied(),
                    fused,
                    cluster: asked.cues[candidate.store].cluster,
                    suppression,
                    feedback: asked.precedents.feedback.get(&candidate).copied().unwrap_or_default(),
                    precedent: asked.precedents.found(&candidate, ranking.scale.standardise(verdicts.score[place])),
                    pool_rank: place + 1,
                    evidence: verdicts.evidence[place],
                    reranker: verdicts.reranker[place],
                },
            })
        };
        order.iter().take(self.k).enumerate().map(row).collect()
    }
}

/// What each source found, best first.
#[derive(Clone)]
struct Sources {
    words: Vec<Scored<Candidate>>,
    vectors: Vec<Scored<Candidate>>,
    /// What was used as an answer to questions like this one.
    used: Vec<Scored<Candidate>>,
}

impl Sources {
    fn with(&self, feedback: &HashMap<Candidate, f64>) -> Self {
        let used = feedback.iter().filter(|(_, worth)| **worth > 0.0).map(|(&id, &score)| Scored { id, score });
        Self { used: order::top(used.collect(), feedback.len()), ..self.clone() }
    }
}

/// Fewer segments than this are not worth another thread.
const WORTH_A_THREAD: usize = 2;

fn by_words(shelves: &[Shelf], query: &WordQuery, n: usize) -> Result<Vec<Scored<Candidate>>> {
    let indexes: Vec<_> = shelves.iter().map(|shelf| (shelf.segment.words(), shelf.allowed)).collect();
    let found = words::search(&indexes, query, n)?;
    let candidates = shelves.iter().zip(found).flat_map(|(shelf, hits)| {
        hits.into_iter().filter_map(|hit| Some(Scored { id: shelf.candidate(hit.id)?, score: hit.score }))
    });
    Ok(order::top(candidates.collect(), n))
}

/// The vectors nearest to the query's, by inner product with all of them.
fn by_vectors(shelves: &[Shelf], query: &Query, n: usize) -> Vec<Scored<Candidate>> {
    let mut highest = Highest::new(n);
    let mut candidates = Vec::new();
    for shelf in shelves {
        let vectors = shelf.segment.vectors();
        let mut consider = |place: usize, similarity: f32| {
            if similarity >= highest.threshold() {
                highest.offer(similarity);
                let (id, score) =
                    (u32::try_from(place).ok().and_then(|place| shelf.candidate(place)), f64::from(similarity));
                candidates.extend(id.map(|id| Scored { id, score }));
            }
        };
        match shelf.allowed {
            None => query.vector.scan(vectors).into_iter().enumerate().for_each(|(place, s)| consider(place, s)),
            Some(allowed) => {
                let places = allowed.iter().enumerate().filter(|(_, allows)| **allows).map(|(place, _)| place);
                places.for_each(|place| consider(place, query.vector.meet(vectors, place)));
            }
        }
    }
    order::top(candidates, n)
}

/// The candidates that are reranked, in the order r_init.
struct Pool {
    /// With the scores s̃ after the penalty.
    members: Vec<Scored<Candidate>>,
    /// The scores before it, and the suppression that was held against each.
    before: HashMap<Candidate, (f64, f64)>,
}

impl Pool {
    fn candidates(&self) -> Vec<Candidate> {
        self.members.iter().map(|scored| scored.id).collect()
    }
}

/// The pool in its final order.
struct Ranking {
    /// As if nothing had been learned.
    verdicts: Verdicts,
    /// Of these scores.
    scale: Scale,
    /// The scores that order.
    score: Vec<f64>,
    /// Places in the pool, best first.
    order: Vec<usize>,
}

/// The mean and the standard deviation of a pool's scores.
#[derive(Clone, Copy)]
struct Scale {
    mean: f64,
    deviation: f64,
}

impl Scale {
    /// A score in standard deviations; 0 where all scores are equal.
    fn standardise(self, score: f64) -> f64 {
        if self.deviation > 0.0 { (score - self.mean) / self.deviation } else { 0.0 }
    }
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
