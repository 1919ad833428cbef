//! What was said of the answers to a question, carried over to questions like it.
//!
//! With q_f the unit vector of a question that feedback was given on and θ a threshold, a question q is like it by
//! w(q, q_f) = max(0, (⟨q, q_f⟩ − θ) / (1 − θ)): from 0 at the threshold to 1 for the same question. A turn is then worth
//! max_f w(q, q_f) over the questions it was used for, less the same over those it was ignored for. So the first verdict already
//! counts, which a cluster of questions does not allow. Found by measurement (docs/learning.md).

use std::collections::HashMap;
use std::hash::Hash;

use super::kernel::dot;

/// A question and what was said of turns as its answers: true for used, false for ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged<I> {
    /// Unit vector.
    pub question: Vec<f32>,
    pub verdicts: Vec<(I, bool)>,
}

/// w(q, q_f): how much a question is like another, by their cosine.
pub fn likeness(cosine: f32, threshold: f64) -> f64 {
    ((f64::from(cosine) - threshold) / (1.0 - threshold).max(f64::EPSILON)).clamp(0.0, 1.0)
}

/// What each turn is worth as an answer to a question, in [−1, 1]. Turns of which nothing is known are left out.
///
/// Questions of another width than `question` were asked under another encoder and say nothing.
pub fn carry_over<'a, I: 'a + Copy + Eq + Hash>(
    question: &[f32],
    judged: impl IntoIterator<Item = &'a Judged<I>>,
    threshold: f64,
) -> HashMap<I, f64> {
    let mut sides: [HashMap<I, f64>; 2] = [HashMap::new(), HashMap::new()];
    for judged in judged.into_iter().filter(|judged| judged.question.len() == question.len()) {
        let likeness = likeness(dot(question, &judged.question), threshold);
        if likeness > 0.0 {
            for &(turn, used) in &judged.verdicts {
                let most = sides[usize::from(used)].entry(turn).or_default();
                *most = most.max(likeness);
            }
        }
    }
    let [ignored, mut worth] = sides;
    ignored.into_iter().for_each(|(turn, likeness)| *worth.entry(turn).or_default() -= likeness);
    worth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_by_hand() {
        assert_eq!(likeness(0.5, 0.5), 0.0);
        assert_eq!(likeness(0.75, 0.5), 0.5);
        assert_eq!(likeness(1.0, 0.5), 1.0);
        assert_eq!((likeness(-1.0, 0.5), likeness(1.001, 0.5)), (0.0, 1.0));
        // at θ = 1 only the same question counts
        assert_eq!((likeness(0.999, 1.0), likeness(1.001, 1.0)), (0.0, 1.0));
    }

    /// Questions at cosines 1, .8 and 0 of the one asked; θ = .5, so likenesses 1, .6 and 0.
    #[test]
    fn the_likest_question_decides() {
        let judged = [
            Judged { question: vec![1.0, 0.0], verdicts: vec![('a', true), ('b', false)] },
            Judged { question: vec![0.8, 0.6], verdicts: vec![('a', true), ('b', true), ('c', false)] },
            Judged { question: vec![0.0, 1.0], verdicts: vec![('d', true)] },
            Judged { question: vec![1.0, 0.0, 0.0], verdicts: vec![('e', true)] },
        ];
        let worth = carry_over(&[1.0, 0.0], &judged, 0.5);
        let close = |turn: char, want: f64| assert!((worth[&turn] - want).abs() < 1e-6, "{turn}: {worth:?}");
        close('a', 1.0);
        close('b', 0.6 - 1.0);
        close('c', -0.6);
        assert_eq!(worth.len(), 3);
    }
}
