//! Merging several ranked lists into one.

use std::collections::BTreeMap;

use super::order::{self, Scored};

/// Added to a standard deviation before dividing by it, so that a list of equal scores becomes zeros and not NaN.
const EPSILON: f64 = 1e-9;

/// Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009): Σ over the lists of 1 / (k + rank).
///
/// Each list is best first, ranks start at 1, `k` (60 in the paper) damps the weight of the first places. An id that a
/// list does not hold gets nothing from it. The result holds every id once, best first.
pub fn reciprocal_rank<I: Ord + Copy>(lists: &[&[Scored<I>]], k: f64) -> Vec<Scored<I>> {
    let mut fused: BTreeMap<I, f64> = BTreeMap::new();
    for list in lists {
        for (position, scored) in list.iter().enumerate() {
            *fused.entry(scored.id).or_default() += 1.0 / (k + position as f64 + 1.0);
        }
    }
    best_first(fused)
}

/// Weighted fusion of standardised scores: Σ over the lists of weight · z(score).
///
/// Scores are standardised over each list by itself. An id that a list does not hold is taken to score as its last one:
/// what a list left out is at most that good. The result holds every id once, best first.
pub fn weighted_z<I: Ord + Copy>(lists: &[(&[Scored<I>], f64)]) -> Vec<Scored<I>> {
    let mut fused: BTreeMap<I, f64> = lists.iter().flat_map(|(list, _)| list.iter().map(|s| (s.id, 0.0))).collect();
    for (list, weight) in lists {
        let z = z_scores(&list.iter().map(|s| s.score).collect::<Vec<_>>());
        let absent = z.iter().copied().fold(f64::INFINITY, f64::min);
        let present: BTreeMap<I, f64> = list.iter().map(|s| s.id).zip(z).collect();
        if list.is_empty() {
            continue;
        }
        for (id, score) in &mut fused {
            *score += weight * present.get(id).copied().unwrap_or(absent);
        }
    }
    best_first(fused)
}

/// (x − mean) / standard deviation, over the population. Equal scores give zeros.
pub fn z_scores(scores: &[f64]) -> Vec<f64> {
    let (mean, deviation) = moments(scores);
    scores.iter().map(|x| (x - mean) / (deviation + EPSILON)).collect()
}

/// Mean and population standard deviation; zeros for an empty slice.
pub fn moments(scores: &[f64]) -> (f64, f64) {
    if scores.is_empty() {
        return (0.0, 0.0);
    }
    let n = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / n;
    let variance = scores.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

fn best_first<I: Ord>(fused: BTreeMap<I, f64>) -> Vec<Scored<I>> {
    let mut list: Vec<_> = fused.into_iter().map(|(id, score)| Scored { id, score }).collect();
    order::sort(&mut list);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(pairs: &[(u32, f64)]) -> Vec<Scored<u32>> {
        pairs.iter().map(|&(id, score)| Scored { id, score }).collect()
    }

    #[test]
    fn reciprocal_rank_adds_the_reciprocals() {
        let (a, b) = (list(&[(1, 9.0), (2, 8.0)]), list(&[(2, 0.4), (3, 0.1)]));
        let fused = reciprocal_rank(&[&a, &b], 60.0);
        // 2: 1/62 + 1/61, 1: 1/61, 3: 1/62
        assert_eq!(fused.iter().map(|s| s.id).collect::<Vec<_>>(), [2, 1, 3]);
        assert!((fused[0].score - 0.032_522_474_881_015_33).abs() < 1e-15);
        assert!((fused[1].score - 0.016_393_442_622_950_82).abs() < 1e-15);
        assert!((fused[2].score - 0.016_129_032_258_064_516).abs() < 1e-15);
    }

    #[test]
    fn z_scores_by_hand() {
        // mean 4, deviations -2 0 2, variance 8/3
        let z = z_scores(&[2.0, 4.0, 6.0]);
        assert!((z[2] - 1.224_744_871).abs() < 1e-8 && z[1].abs() < 1e-12 && (z[0] + z[2]).abs() < 1e-12);
        assert_eq!(z_scores(&[7.0, 7.0]), [0.0, 0.0]);
        assert!(z_scores(&[]).is_empty());
    }

    #[test]
    fn weighted_z_gives_the_absent_the_lowest_score_of_the_list() {
        let (words, vectors) = (list(&[(1, 3.0), (2, 1.0)]), list(&[(3, 0.9), (1, 0.1)]));
        // words: 1 → +1, 2 → −1, 3 absent → −1;  vectors: 3 → +1, 1 → −1, 2 absent → −1
        let fused = weighted_z(&[(&words, 0.25), (&vectors, 0.75)]);
        let expected = [(3, -0.25 + 0.75), (1, 0.25 - 0.75), (2, -0.25 - 0.75)];
        for (got, (id, score)) in fused.iter().zip(expected) {
            assert_eq!(got.id, id);
            assert!((got.score - score).abs() < 1e-6, "{got:?}");
        }
        assert_eq!(weighted_z(&[(&[] as &[Scored<u32>], 1.0), (&words, 1.0)])[0].id, 1);
    }

    proptest! {
        #[test]
        fn fusion_neither_loses_nor_invents_nor_repeats(a in prop::collection::btree_set(0u32..40, 0..20),
                                                       b in prop::collection::btree_set(0u32..40, 0..20)) {
            let as_list = |s: &std::collections::BTreeSet<u32>| s.iter().map(|&id| Scored { id, score: f64::from(id) }).collect::<Vec<_>>();
            let (la, lb) = (as_list(&a), as_list(&b));
            let union: Vec<u32> = a.union(&b).copied().collect();
            for fused in [reciprocal_rank(&[&la, &lb], 60.0), weighted_z(&[(&la, 0.5), (&lb, 0.5)])] {
                let mut got: Vec<u32> = fused.iter().map(|s| s.id).collect();
                got.sort_unstable();
                prop_assert_eq!(&got, &union);
            }
        }
    }
}
