//! Learning from a retrieval: who ranked high and did not answer is suppressed for questions of that kind.

use std::collections::{BTreeMap, HashMap};

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{BySuppressed, Store, now};
use super::knobs::Knobs;
use super::rerank::Query;
use super::scope::{Candidate, Scope};
use crate::error::{Error, Result};
use crate::rank::cues;
use crate::rank::precedent::{Member, kept};
use crate::rank::suppression::{LearningRule, PoolMember, blame};
use crate::store::learning::{self, ClusterId, Cues, Suppression};
use crate::store::retrievals::{self, Kept, NewRetrieval, Retrieved};
use crate::store::to_i64;

/// Where k-means starts from: fixed, so that the same retrievals give the same clusters.
const CLUSTERING_SEED: u64 = 0x6c65_7468_6500_0001;

/// How a store learns from retrievals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is kept of them.
    Off,
    /// Questions are kept, so that they can lend what was found for them, and feedback can be given on their answers.
    Feedback,
    /// They are, and who ranked high and did not answer is suppressed by this rule.
    Forgetting(LearningRule),
}

/// The modes, by what a store's table `store` says.
pub const MODES: [(&str, Mode); 4] = [
    ("feedback", Mode::Feedback),
    ("rank_gap", Mode::Forgetting(LearningRule::RankGap)),
    ("uniform", Mode::Forgetting(LearningRule::Uniform)),
    ("off", Mode::Off),
];

pub fn mode(name: &str) -> Result<Mode> {
    let found = MODES.iter().find(|(known, _)| *known == name);
    found.map(|(_, mode)| *mode).ok_or_else(|| {
        Error::argument("learning", format!("'{name}'"), MODES.map(|(name, _)| format!("'{name}'")).join(", "))
    })
}

/// The cluster of a query in one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryCue {
    pub cluster: ClusterId,
    pub generation: i64,
    pub clustered_queries: i64,
}

/// c(q): the cue cluster a query belongs to; cluster 0 before the first clustering.
pub fn cue(connection: &Connection, store: &Store, embedding: &[f32]) -> Result<QueryCue> {
    let cues = store.cues(connection)?;
    let fitting = cues.centroids.iter().all(|centroid| centroid.len() == embedding.len());
    let cluster = if fitting { cues::assign(embedding, cues.centroids.iter().map(Vec::as_slice)) } else { None };
    Ok(QueryCue { cluster: to_i64(cluster.unwrap_or(0)), generation: cues.generation, clustered_queries: cues.queries })
}

/// Days between two moments in microseconds.
pub fn days(from: i64, to: i64) -> f64 {
    to.saturating_sub(from) as f64 / 86_400e6
}

/// A retrieval that happened.
pub struct Lesson<'a> {
    pub retrieval: Uuid,
    pub query: &'a Query<'a>,
    /// The reranked pool, in its initial order.
    pub members: &'a [(Candidate, PoolMember)],
    /// The pools with and without what was learned.
    pub pool: &'a [Member<Candidate>],
}

impl Lesson<'_> {
    /// The best of the pool that are in the store at `place` of the scope.
    fn pool_in(&self, place: usize) -> Vec<Member<Uuid>> {
        let here = self.pool.iter().filter(|member| member.id.store == place);
        let member = |Member { id, plain, learned }: Member<Candidate>| Member { id: id.turn, plain, learned };
        kept(&here.copied().map(member).collect::<Vec<_>>())
    }
}

/// Whether so much is suppressed for a kind of question that it says nothing any more: more than half of the turns.
pub fn saturated(suppressed: &BySuppressed, turns: usize) -> bool {
    2 * suppressed.values().filter(|entry| entry.score > 0.0).count() > turns
}

/// Remembers retrievals and blames their distractors, in every store of the scope that learns and can be written.
///
/// Never fails: what went wrong is left for `memory_stats` to show.
pub fn learn(connection: &Connection, scope: &Scope, lessons: &[Lesson], knobs: &Knobs) {
    if lessons.is_empty() {
        return;
    }
    for (number, place) in scope.places.iter().enumerate() {
        if let Ok(mut learning) = place.store.learning() {
            let learned = learn_in(connection, &place.store, number, lessons, knobs);
            learning.error = learned.err().map(|error| error.to_string());
        }
    }
}

fn learn_in(connection: &Connection, store: &Store, number: usize, lessons: &[Lesson], knobs: &Knobs) -> Result<()> {
    let mode = mode(&store.config.learning)?;
    if mode == Mode::Off || store.database.read_only {
        return Ok(());
    }
    // Asked again, because another retrieval may have refitted the clusters since the answer was made.
    let cues =
        lessons.iter().map(|lesson| cue(connection, store, &lesson.query.embedding)).collect::<Result<Vec<_>>>()?;
    let now = now();
    // Who is blamed for how much in which cluster, in the order of the questions.
    let mut blamed: BTreeMap<ClusterId, Vec<(Uuid, f64)>> = BTreeMap::new();
    for (lesson, cue) in lessons.iter().zip(&cues) {
        let Mode::Forgetting(rule) = mode else { break };
        let depth = lesson.members.len().min(knobs.learning_depth);
        let here = lesson.members[..depth].iter().filter(|(candidate, _)| candidate.store == number);
        let deltas = here.map(|(candidate, member)| (candidate.turn, blame(rule, *member, depth, knobs.eta)));
        blamed.entry(cue.cluster).or_default().extend(deltas.filter(|(_, delta)| *delta > 0.0));
    }
    let remembered = |lesson: &Lesson| Retrieved {
        id: lesson.retrieval,
        query: lesson.query.text.to_owned(),
        embedding: lesson.query.embedding.clone(),
        pool: lesson.pool_in(number),
    };
    let remembered: Vec<Retrieved> = lessons.iter().map(remembered).collect();
    let (kept, entries, fingerprint) = store.aside(connection, || {
        let mut all = Kept::default();
        for (Retrieved { id, query, embedding, pool }, cue) in remembered.iter().zip(&cues) {
            let retrieval = NewRetrieval { id: *id, asked_at: now, query, embedding, cluster: cue.cluster, pool };
            let kept = retrievals::insert(connection, &store.database, &retrieval, knobs.retrievals_kept)?;
            all = Kept { count: kept.count, dropped: all.dropped + kept.dropped };
        }
        let mut entries = Vec::new();
        for (&cluster, blamed) in &blamed {
            let turns: Vec<Uuid> = blamed.iter().map(|(turn, _)| *turn).collect();
            let mut known = learning::suppression_of(connection, &store.database, cluster, &turns)?;
            for &(turn, delta) in blamed {
                let raised = raise(known.get(&turn), turn, cluster, delta, knobs, now);
                known.insert(turn, raised);
            }
            entries.extend(known.into_values());
        }
        entries.sort_by_key(|entry| (entry.cluster, entry.turn));
        learning::put_suppression(connection, &store.database, &entries)?;
        let ids: Vec<Uuid> = remembered.iter().map(|retrieved| retrieved.id).collect();
        Ok((all, entries, retrievals::fingerprint(connection, &store.database, Some(&ids))?))
    })?;
    store.suppression_put(&entries)?;
    match kept.dropped {
        0 => store.experienced(fingerprint, |experience| {
            remembered.into_iter().for_each(|retrieved| experience.remember(retrieved));
        })?,
        _ => store.learned_anew()?,
    }
    // First when there are enough questions, then whenever their number has doubled.
    let clustered = cues.iter().map(|cue| cue.clustered_queries).max().unwrap_or_default();
    if mode != Mode::Feedback && kept.count >= to_i64(knobs.cluster_after).max(2 * clustered) {
        fit_cues(connection, store, knobs)?;
    }
    Ok(())
}

/// The entry after `delta` was added to what it counts now.
pub fn raise(
    known: Option<&Suppression>,
    turn: Uuid,
    cluster: ClusterId,
    delta: f64,
    knobs: &Knobs,
    now: i64,
) -> Suppression {
    let (score, hits, age) =
        known.map_or((0.0, 0, 0.0), |entry| (entry.score, entry.hits, days(entry.updated_at, now)));
    Suppression { turn, cluster, score: knobs.retention.add(score, age, delta), hits: hits + 1, updated_at: now }
}

/// What a clustering came to.
pub struct Reclustering {
    pub generation: i64,
    /// Queries of each cluster.
    pub sizes: Vec<i64>,
}

/// Fits the cue clusters to the stored retrievals anew, and carries the suppression over.
///
/// What was learned about an old cluster goes to the new one nearest to its centroid; what was learned before there were
/// clusters goes to all of them, so that the first clustering changes no ranking by itself.
pub fn recluster(connection: &Connection, store: &Store, knobs: &Knobs) -> Result<Reclustering> {
    store.database.require_writable("memory_recluster")?;
    let _alone = store.learning()?;
    fit_cues(connection, store, knobs)
}

fn fit_cues(connection: &Connection, store: &Store, knobs: &Knobs) -> Result<Reclustering> {
    let database = &store.database;
    let dim = store.config.encoder.dim;
    let queries = learning::query_vectors(connection, database, dim)?;
    if queries.is_empty() {
        return Err(Error::Data {
            store: database.name.clone(),
            table: "retrievals",
            problem: "no question to cluster; ask some with learning on first".into(),
        });
    }
    let centroids = cues::fit(&queries, dim, knobs.clusters, CLUSTERING_SEED).map_err(Error::Clustering)?;
    let nearest = |vector: &[f32]| cues::assign(vector, centroids.iter().map(Vec::as_slice)).map_or(0, to_i64);
    let mut sizes = vec![0i64; centroids.len()];
    for query in queries.chunks_exact(dim) {
        if let Some(size) = usize::try_from(nearest(query)).ok().and_then(|cluster| sizes.get_mut(cluster)) {
            *size += 1;
        }
    }
    let old = learning::cues(connection, database)?;
    let carried: HashMap<ClusterId, Vec<ClusterId>> = if old.centroids.is_empty() {
        HashMap::from([(0, (0..to_i64(centroids.len())).collect())])
    } else {
        old.centroids.iter().enumerate().map(|(cluster, centroid)| (to_i64(cluster), vec![nearest(centroid)])).collect()
    };
    let fresh = Cues { generation: old.generation + 1, centroids: centroids.clone(), queries: 0 };
    learning::replace_cues(connection, database, &fresh, &sizes, &carried)?;
    store.learned_anew()?;
    Ok(Reclustering { generation: fresh.generation, sizes })
}
