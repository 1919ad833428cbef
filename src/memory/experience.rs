//! What a store remembers of the questions it was asked: what was found, what was said of it, and what came of having learned.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use uuid::Uuid;

use crate::error::Result;
use crate::model::encoder::{Encoder, Piece};
use crate::rank::precedent::Member;
use crate::rank::watch::{Tally, by_reranker, by_verdict};
use crate::store::learning::Said;
use crate::store::retrievals::Retrieved;

type Found = Arc<[Member<Uuid>]>;

/// A question that was asked, however often.
#[derive(Clone, Debug)]
pub struct Past {
    pub query: String,
    /// Unit vector. Of another width than the encoder's if it was asked under another.
    pub embedding: Arc<[f32]>,
    /// The best of its pool, when it was asked last.
    pub pool: Found,
    /// For each turn that was judged as its answer, whether it was used, the last time.
    pub verdicts: Vec<(Uuid, bool)>,
    /// Of the question, once they were wanted.
    pieces: OnceLock<Vec<Piece>>,
}

impl Past {
    /// Whether some turn was used as its answer.
    pub fn was_answered(&self) -> bool {
        self.verdicts.iter().any(|(_, used)| *used)
    }

    /// The wordpieces of the question.
    pub fn pieces(&self, encoder: &Encoder) -> Result<&[Piece]> {
        if let Some(pieces) = self.pieces.get() {
            return Ok(pieces);
        }
        let pieces = encoder.pieces(&self.query)?;
        Ok(self.pieces.get_or_init(|| pieces))
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Experience {
    pasts: Vec<Past>,
    by_query: HashMap<String, usize>,
    /// The question of each retrieval, and what it found.
    retrievals: HashMap<Uuid, (usize, Found)>,
    /// What learning gained by each verdict, and suppression in each retrieval, where they changed anything; oldest first.
    by_verdict: Vec<f64>,
    by_reranker: Vec<f64>,
}

impl Experience {
    /// Of retrievals, oldest first.
    pub fn of(retrievals: impl IntoIterator<Item = Retrieved>) -> Self {
        let mut experience = Self::default();
        retrievals.into_iter().for_each(|retrieved| experience.remember(retrieved));
        experience
    }

    /// Takes note of these verdicts, oldest first, and of no others.
    pub fn judge_anew(&mut self, said: impl IntoIterator<Item = Said>) {
        self.by_verdict.clear();
        self.pasts.iter_mut().for_each(|past| past.verdicts.clear());
        said.into_iter().for_each(|said| self.judge(said));
    }

    /// Takes note of a retrieval, the latest so far.
    pub fn remember(&mut self, retrieved: Retrieved) {
        let Retrieved { id, query, embedding, pool } = retrieved;
        let (embedding, pool): (Arc<[f32]>, Found) = (embedding.into(), pool.into());
        self.by_reranker.extend(by_reranker(&pool).filter(|gain| *gain != 0.0));
        let place = match self.by_query.get(&query) {
            Some(&place) => {
                let past = &mut self.pasts[place];
                (past.embedding, past.pool) = (embedding, pool.clone());
                place
            }
            None => {
                let (verdicts, pieces) = (Vec::new(), OnceLock::new());
                self.pasts.push(Past { query: query.clone(), embedding, pool: pool.clone(), verdicts, pieces });
                self.by_query.insert(query, self.pasts.len() - 1);
                self.pasts.len() - 1
            }
        };
        self.retrievals.insert(id, (place, pool));
    }

    /// Takes note of a verdict, the latest so far. One on a retrieval that is not known says nothing.
    pub fn judge(&mut self, said: Said) {
        let Some((place, pool)) = self.retrievals.get(&said.retrieval) else { return };
        self.by_verdict.extend(by_verdict(pool, said.turn, said.used).filter(|gain| *gain != 0.0));
        let verdicts = &mut self.pasts[*place].verdicts;
        match verdicts.iter_mut().find(|(turn, _)| *turn == said.turn) {
            Some((_, used)) => *used = said.used,
            None => verdicts.push((said.turn, said.used)),
        }
    }

    /// Every question, in the order they were first asked.
    pub fn pasts(&self) -> &[Past] {
        &self.pasts
    }

    /// A question by its text.
    pub fn past(&self, query: &str) -> Option<&Past> {
        self.pasts.get(*self.by_query.get(query)?)
    }

    /// What the verdicts say of all that moved the final order.
    pub fn of_order(&self) -> Tally {
        Tally::of(&self.by_verdict)
    }

    /// What the reranker says of suppression.
    pub fn of_suppression(&self) -> Tally {
        Tally::of(&self.by_reranker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retrieved(id: u128, query: &str, learned: [f32; 2]) -> Retrieved {
        let member =
            |turn, plain, learned| Member { id: Uuid::from_u128(turn), plain: Some(plain), learned: Some(learned) };
        let pool = vec![member(1, 2.0, learned[0]), member(2, 1.0, learned[1])];
        Retrieved { id: Uuid::from_u128(id), query: query.into(), embedding: vec![1.0, 0.0], pool }
    }

    fn said(retrieval: u128, turn: u128, used: bool) -> Said {
        Said { retrieval: Uuid::from_u128(retrieval), turn: Uuid::from_u128(turn), used }
    }

    #[test]
    fn a_question_is_one_however_often_it_was_asked() {
        let mut experience = Experience::default();
        experience.remember(retrieved(10, "a?", [2.0, 1.0]));
        experience.remember(retrieved(11, "b?", [2.0, 1.0]));
        experience.judge(said(10, 1, true));
        experience.remember(retrieved(12, "a?", [0.0, 1.0]));
        experience.judge(said(10, 1, false));
        experience.judge(said(12, 2, true));
        experience.judge(said(99, 2, true));
        let [a, b] = experience.pasts() else { panic!("{:?}", experience.pasts()) };
        assert_eq!((a.query.as_str(), b.query.as_str()), ("a?", "b?"));
        assert_eq!(a.verdicts, [(Uuid::from_u128(1), false), (Uuid::from_u128(2), true)]);
        assert_eq!(a.pool[0].learned, Some(0.0), "what was found last");
        assert!(b.verdicts.is_empty());
        // Of the three verdicts the first two fell on an order that was not moved, the third on one that was: 1 − 1/2.
        assert_eq!((experience.of_order().occasions, experience.of_order().mean), (1, 0.5));
        assert_eq!(experience.of_suppression().occasions, 0);
    }
}
