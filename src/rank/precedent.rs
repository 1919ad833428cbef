//! What was found for a question, as evidence for questions like it: soft cues.
//!
//! The seed (the lethe paper) keeps what it learns by cluster of questions; the first tens of questions have none, and a cluster
//! holds questions that have little to do with each other. Here each question is a cue by itself. With p the question asked
//! before that is the likest to q ([`super::likeness`]), z_p(m) and z_q(m) the final scores of a turn m for either in standard deviations of
//! its pool, and f_p the lowest of the [`KEPT`] highest z_p, m gains
//!
//! * likeness(q, p) · max(0, z_p(m) − f_p) if it is among these highest, so that what won for p is strengthened against its competitors;
//! * likeness(q, p) · max(0, z_q(m) − f_p) if not: it may not have been there yet, and is taken to score for p as it does for q.
//!
//! Scores are those of before anything was learned, so that nothing feeds on itself. Found by measurement (docs/learning.md).

use std::collections::HashMap;
use std::hash::Hash;

/// How many of a pool's best are kept of a retrieval.
pub const KEPT: usize = 30;

/// A member of a pool, with its final score if nothing had been learned and with what was, in standard deviations of the pool's
/// scores: `None` where it would not be in the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member<I> {
    pub id: I,
    pub plain: Option<f32>,
    pub learned: Option<f32>,
}

/// The members that are among the [`KEPT`] best either way, those that are with what was learned first, best first.
pub fn kept<I: Copy>(pool: &[Member<I>]) -> Vec<Member<I>> {
    let last = |score: fn(&Member<I>) -> Option<f32>| {
        let mut scores: Vec<f32> = pool.iter().filter_map(score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        scores.get(KEPT - 1).copied().unwrap_or(f32::NEG_INFINITY)
    };
    let (plain, learned) = (last(|member| member.plain), last(|member| member.learned));
    let reaches = |score: Option<f32>, last: f32| score.is_some_and(|score| score >= last);
    let mut kept: Vec<Member<I>> =
        pool.iter().copied().filter(|m| reaches(m.plain, plain) || reaches(m.learned, learned)).collect();
    let place = |member: &Member<I>| member.learned.unwrap_or(f32::NEG_INFINITY);
    kept.sort_by(|a, b| place(b).total_cmp(&place(a)));
    kept
}

/// The likest question that was asked before.
#[derive(Clone, Debug)]
pub struct Precedent<I> {
    likeness: f64,
    /// z_p of the best of its pool, and the lowest of them.
    scores: HashMap<I, f32>,
    floor: f32,
}

impl<I: Copy + Eq + Hash> Precedent<I> {
    /// `None` if nothing was found for it.
    pub fn new(likeness: f64, pool: impl IntoIterator<Item = Member<I>>) -> Option<Self> {
        let mut scores: Vec<(I, f32)> =
            pool.into_iter().filter_map(|member| Some((member.id, member.plain?))).collect();
        scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        scores.truncate(KEPT);
        let (_, floor) = *scores.last()?;
        Some(Self { likeness, scores: scores.into_iter().collect(), floor })
    }

    /// What a turn gains that scores z_q, in standard deviations.
    pub fn worth(&self, turn: &I, score: f64) -> f64 {
        let score = self.scores.get(turn).map_or(score, |&score| score.into());
        self.likeness * (score - f64::from(self.floor)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: usize, plain: Option<f32>, learned: Option<f32>) -> Member<usize> {
        Member { id, plain, learned }
    }

    #[test]
    fn worth_by_hand() {
        let pool = [
            member(1, Some(2.5), None),
            member(2, None, Some(9.0)),
            member(3, Some(-0.5), Some(1.0)),
            member(4, Some(0.5), Some(0.5)),
        ];
        let precedent = Precedent::new(0.5, pool).unwrap();
        // Whatever they score now: 2.5, .5 and −.5 above −.5.
        assert_eq!([1, 4, 3].map(|turn| precedent.worth(&turn, 7.0)), [1.5, 0.5, 0.0]);
        // Unknown then: what they score now.
        assert_eq!((precedent.worth(&2, 1.5), precedent.worth(&5, -2.0)), (1.0, 0.0));
        assert!(Precedent::<usize>::new(1.0, []).is_none());
    }

    #[test]
    fn only_the_best_are_kept_and_count() {
        // Without learning in order, with it the other way round.
        let pool: Vec<Member<usize>> =
            (0..100u8).map(|place| member(place.into(), Some(-f32::from(place)), Some(f32::from(place)))).collect();
        let kept: Vec<usize> = kept(&pool).iter().map(|member| member.id).collect();
        assert_eq!(kept, (100 - KEPT..100).rev().chain((0..KEPT).rev()).collect::<Vec<_>>());
        let precedent = Precedent::new(1.0, pool).unwrap();
        assert_eq!([0, KEPT - 2, KEPT].map(|turn| precedent.worth(&turn, -100.0)), [29.0, 1.0, 0.0]);
    }
}
