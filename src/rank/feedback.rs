//! What was said of the answers to a question, carried over to questions like it.
//!
//! A turn is worth the highest likeness ([`super::likeness`]) of a question it was used for, less the highest of one it was ignored
//! for. So the first verdict already counts, which a cluster of questions does not allow. Found by measurement (docs/learning.md).

use std::collections::HashMap;
use std::hash::Hash;

/// What each turn is worth as an answer to a question, in [−1, 1], by the questions like it: their likeness, and for each turn that
/// was judged as an answer to them whether it was used. Turns of which nothing is known are left out.
pub fn carry_over<'a, I: 'a + Copy + Eq + Hash>(
    alike: impl IntoIterator<Item = (f64, &'a [(I, bool)])>,
) -> HashMap<I, f64> {
    let mut sides: [HashMap<I, f64>; 2] = [HashMap::new(), HashMap::new()];
    for (likeness, verdicts) in alike {
        for &(turn, used) in verdicts {
            let most = sides[usize::from(used)].entry(turn).or_default();
            *most = most.max(likeness);
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
    fn the_likest_question_decides() {
        let same = [('a', true), ('b', false)];
        let like = [('a', true), ('b', true), ('c', false)];
        let worth = carry_over([(0.6, &like[..]), (1.0, &same[..])]);
        assert_eq!(worth, HashMap::from([('a', 1.0), ('b', 0.6 - 1.0), ('c', -0.6)]));
        assert!(carry_over::<char>([]).is_empty());
    }
}
