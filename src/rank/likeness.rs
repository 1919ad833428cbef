//! How much two questions are alike.
//!
//! Whole questions that are put alike lie close together whatever they are about ("What did Ana bake?", "What did Ben paint?"), and
//! questions that share their words need not mean the same. So both count: with c the cosine of the questions' vectors and s the
//! share of their words they have in common,
//!
//! * s = Σ_{x ∈ Q ∩ P} w_x / min(Σ_{x ∈ Q} w_x, Σ_{x ∈ P} w_x), over the wordpieces Q and P of either, w_x being the inverse document
//!   frequency of x among the turns (the overlap coefficient, weighted);
//! * likeness = max(0, (c − θ) / (1 − θ)) · max(0, (s − σ) / (1 − σ)): from 0 at the thresholds θ and σ to 1 for the same question.
//!
//! Found by measurement (docs/learning.md).

use std::collections::BTreeSet;

/// From where on questions are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// θ, of the cosine, 0 to 1.
    pub cosine: f64,
    /// σ, of the share of words in common, 0 to 1.
    pub shared: f64,
}

/// The likeness of two questions, 0 to 1, by their cosine and the share of their words in common.
pub fn likeness(cosine: f64, shared: f64, thresholds: Thresholds) -> f64 {
    ramp(cosine, thresholds.cosine) * ramp(shared, thresholds.shared)
}

/// 0 up to the threshold, 1 at 1, straight in between.
pub fn ramp(x: f64, threshold: f64) -> f64 {
    ((x - threshold) / (1.0 - threshold).max(f64::EPSILON)).clamp(0.0, 1.0)
}

/// s: the share of their words that two questions have in common, 0 to 1, each word counting once and as much as it weighs.
pub fn shared<P: Copy + Ord>(one: &[P], other: &[P], weight: impl Fn(P) -> f64) -> f64 {
    let [one, other]: [BTreeSet<P>; 2] = [one, other].map(|pieces| pieces.iter().copied().collect());
    let sum = |pieces: &mut dyn Iterator<Item = &P>| pieces.map(|&piece| weight(piece)).sum::<f64>();
    let least = sum(&mut one.iter()).min(sum(&mut other.iter()));
    if least > 0.0 { sum(&mut one.intersection(&other)) / least } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ramps_by_hand() {
        assert_eq!((ramp(0.5, 0.5), ramp(0.75, 0.5), ramp(1.0, 0.5)), (0.0, 0.5, 1.0));
        assert_eq!((ramp(-1.0, 0.5), ramp(1.001, 0.5)), (0.0, 1.0));
        // at a threshold of 1 only the same question counts
        assert_eq!((ramp(0.999, 1.0), ramp(1.001, 1.0)), (0.0, 1.0));
    }

    #[test]
    fn likeness_wants_both() {
        let thresholds = Thresholds { cosine: 0.5, shared: 0.8 };
        assert!((likeness(0.75, 0.9, thresholds) - 0.25).abs() < 1e-12);
        assert_eq!(likeness(1.0, 0.8, thresholds), 0.0);
        assert_eq!(likeness(0.5, 1.0, thresholds), 0.0);
        assert_eq!(likeness(1.0, 1.0, thresholds), 1.0);
    }

    #[test]
    fn shared_words_by_hand() {
        let weight = |piece: char| if piece == 'x' { 0.0 } else { f64::from(u32::from(piece) - u32::from('a')) };
        // b 1, c 2, d 3, e 4: one has b c d = 6, the other c d e = 9, in common c d = 5
        assert!((shared(&['b', 'c', 'd'], &['e', 'd', 'c', 'c'], weight) - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(shared(&['b', 'c'], &['d', 'c', 'b'], weight), 1.0);
        assert_eq!(shared(&['b'], &['c'], weight), 0.0);
        assert_eq!(shared(&[], &['c'], weight), 0.0);
        assert_eq!(shared(&['x'], &['x'], weight), 0.0);
    }
}
