//! Explicit feedback: which answers were used, and which were no help.

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{Engine, Store, now};
use super::knobs::Knobs;
use super::learn::{Mode, mode, raise};
use crate::error::{Error, Result};
use crate::store::catalog;
use crate::store::learning::{self, ClusterId, Said, Suppression, Verdict};
use crate::store::retrievals::{self, Fingerprint};
use crate::store::schema;

/// What became of one verdict.
pub struct Noted {
    pub turn: Uuid,
    pub store: String,
    pub verdict: Verdict,
    pub cluster: ClusterId,
    /// The turn's suppression in the cluster of the question.
    pub suppression: f64,
}

/// Takes feedback on a retrieval. It moves the answers to questions like it from now on. In a store that forgets, `used` also
/// takes away the turn's suppression for questions of that kind, and `ignored` adds [`Knobs::feedback_step`] to it, many times what
/// one retrieval can.
///
/// Every turn must be in a store that knows the retrieval; otherwise nothing is changed anywhere.
pub fn feedback(
    engine: &Engine,
    connection: &Connection,
    retrieval: Uuid,
    verdicts: &[(Uuid, Verdict)],
    knobs: &Knobs,
) -> Result<Vec<Noted>> {
    let knowing = stores_knowing(engine, connection, retrieval)?;
    if knowing.is_empty() {
        return Err(Error::UnknownRetrieval(retrieval.to_string()));
    }
    let turns: Vec<Uuid> = verdicts.iter().map(|(turn, _)| *turn).collect();
    let mut by_store = Vec::new();
    let mut unknown = turns.clone();
    for (store, cluster) in &knowing {
        let known = learning::known_turns(connection, &store.database, &turns)?;
        unknown.retain(|turn| !known.contains(turn));
        let here: Vec<(Uuid, Verdict)> = verdicts.iter().copied().filter(|(turn, _)| known.contains(turn)).collect();
        by_store.push((store, *cluster, here));
    }
    if let Some(turn) = unknown.first() {
        let stores: Vec<&str> = knowing.iter().map(|(store, _)| store.database.name.as_str()).collect();
        let allowed = format!("turns of the stores the retrieval was asked of: {}", stores.join(", "));
        return Err(Error::argument("a turn_id", format!("'{turn}', which is not in them"), allowed));
    }
    let mut noted = Vec::new();
    for (store, cluster, here) in by_store.into_iter().filter(|(_, _, here)| !here.is_empty()) {
        noted.extend(note(connection, store, cluster, retrieval, &here, knobs)?);
    }
    Ok(noted)
}

fn stores_knowing(engine: &Engine, connection: &Connection, retrieval: Uuid) -> Result<Vec<(Store, ClusterId)>> {
    let mut knowing = Vec::new();
    for database in catalog::databases(connection)?.into_iter().filter(|database| !database.read_only) {
        if schema::is_store(connection, &database)? {
            let store = engine.open(connection, &database)?;
            if let Some(cluster) = retrievals::cluster_of(connection, &database, retrieval)? {
                knowing.push((store, cluster));
            }
        }
    }
    Ok(knowing)
}

fn note(
    connection: &Connection,
    store: &Store,
    cluster: ClusterId,
    retrieval: Uuid,
    verdicts: &[(Uuid, Verdict)],
    knobs: &Knobs,
) -> Result<Vec<Noted>> {
    let now = now();
    let database = &store.database;
    let forgets = matches!(mode(&store.config.learning)?, Mode::Forgetting(_));
    let _alone = store.learning()?;
    let entries = store.aside(connection, || {
        learning::insert_feedback(connection, database, retrieval, verdicts, now)?;
        let turns: Vec<Uuid> = verdicts.iter().map(|(turn, _)| *turn).collect();
        let known = learning::suppression_of(connection, database, cluster, &turns)?;
        let entry = |(turn, verdict): &(Uuid, Verdict)| {
            let step = if forgets { knobs.feedback_step } else { 0.0 };
            let raised = raise(known.get(turn), *turn, cluster, step, knobs, now);
            match verdict {
                Verdict::Ignored => raised,
                Verdict::Used => Suppression { score: 0.0, ..raised },
            }
        };
        let entries: Vec<Suppression> = verdicts.iter().map(entry).collect();
        learning::put_suppression(connection, database, &entries)?;
        Ok(entries)
    })?;
    store.suppression_put(&entries)?;
    let said = |&(turn, verdict): &(Uuid, Verdict)| Said { retrieval, turn, used: verdict == Verdict::Used };
    store.experienced(Fingerprint::default(), |experience| {
        verdicts.iter().map(said).for_each(|said| experience.judge(said))
    })?;
    let noted = verdicts.iter().zip(&entries).map(|((turn, verdict), entry)| Noted {
        turn: *turn,
        store: database.name.clone(),
        verdict: *verdict,
        cluster,
        suppression: entry.score,
    });
    Ok(noted.collect())
}
