//! Whether what was learned does good: the same pool with it and without it, judged from outside.
//!
//! What moves the final order is judged by people and agents: where a turn that was used stands at rank r with what was learned
//! and would stand at r₀ without, learning gained 1/r − 1/r₀, and as much was lost if the turn was ignored. What keeps candidates out of
//! the pool (suppression) is judged by the reranker, which reads both pools: of its best [`JUDGED`] of either, the share that one
//! pool has more than the other. So a verdict is a test before it is a lesson (prequential evaluation: Dawid, J. Royal Statistical
//! Society A 147, 1984), and no answer is made worse to find out.

use super::precedent::Member;

/// How many of the reranker's best the two pools are compared by.
pub const JUDGED: usize = 10;

/// The latest occasions that count, and the fewest that say anything.
const WINDOW: usize = 200;
const LEAST: usize = 20;

/// What learning gained by a verdict on `id`, in (−1, 1); `None` if the pool does not have it.
pub fn by_verdict<I: Copy + PartialEq>(pool: &[Member<I>], id: I, used: bool) -> Option<f64> {
    let member = pool.iter().find(|member| member.id == id)?;
    let reciprocal = |score: fn(&Member<I>) -> Option<f32>| {
        let above = |own: f32| pool.iter().filter_map(score).filter(|other| *other > own).count();
        score(member).map_or(0.0, |own| 1.0 / (above(own) as f64 + 1.0))
    };
    let gain = reciprocal(|member| member.learned) - reciprocal(|member| member.plain);
    Some(if used { gain } else { -gain })
}

/// What suppression gained in one retrieval, in [−1, 1]; `None` where it kept nothing out of the pool.
pub fn by_reranker<I: Copy>(pool: &[Member<I>]) -> Option<f64> {
    pool.iter().any(|member| member.learned.is_none()).then_some(())?;
    let mut best: Vec<(f32, &Member<I>)> =
        pool.iter().filter_map(|member| Some((member.plain.or(member.learned)?, member))).collect();
    best.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    best.truncate(JUDGED);
    let had = |has: fn(&Member<I>) -> bool| best.iter().filter(|(_, member)| has(member)).count() as f64;
    let (with, without) = (had(|member| member.learned.is_some()), had(|member| member.plain.is_some()));
    Some((with - without) / best.len() as f64)
}

/// What learning gained over the latest occasions on which it changed anything.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub occasions: usize,
    pub mean: f64,
    /// The standard error of the mean.
    pub error: f64,
}

impl Tally {
    /// Of gains, oldest first; none of them 0.
    pub fn of(gains: &[f64]) -> Self {
        let latest = &gains[gains.len().saturating_sub(WINDOW)..];
        let (mean, error) = mean_and_error(latest);
        Self { occasions: latest.len(), mean, error }
    }

    /// Whether it does harm beyond chance: its mean is more than two standard errors below 0.
    pub fn harmful(&self) -> bool {
        self.occasions >= LEAST && self.mean + 2.0 * self.error < 0.0
    }
}

/// The mean, and its standard error; zeros without values.
pub fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (square / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: char, plain: impl Into<Option<f32>>, learned: impl Into<Option<f32>>) -> Member<char> {
        Member { id, plain: plain.into(), learned: learned.into() }
    }

    /// Without learning a b c, with it c a, b kept out and d brought in between.
    fn pool() -> Vec<Member<char>> {
        vec![member('a', 3.0, 3.0), member('b', 2.0, None), member('c', 1.0, 5.0), member('d', None, 4.0)]
    }

    #[test]
    fn verdicts_by_hand() {
        let gain = |id, used| by_verdict(&pool(), id, used);
        assert_eq!(gain('c', true), Some(1.0 - 1.0 / 3.0));
        assert_eq!(gain('c', false), Some(1.0 / 3.0 - 1.0));
        assert_eq!(gain('a', true), Some(1.0 / 3.0 - 1.0));
        assert_eq!(gain('b', true), Some(-0.5));
        assert_eq!(gain('d', true), Some(0.5));
        assert_eq!(gain('e', true), None);
    }

    #[test]
    fn pools_by_hand() {
        // Of the reranker's four best, a b c d, either pool has three.
        assert_eq!(by_reranker(&pool()), Some(0.0));
        let mut pool = pool();
        pool.pop();
        assert_eq!(by_reranker(&pool), Some(-1.0 / 3.0));
        // Beyond the first ten nothing counts.
        let many: Vec<Member<char>> = (0..12u8)
            .map(|place| member(char::from(b'a' + place), Some(100.0 - f32::from(place)), (place < 10).then_some(0.0)))
            .collect();
        assert_eq!(by_reranker(&many), Some(0.0));
        assert_eq!(by_reranker(&pool[2..]), None);
    }

    #[test]
    fn the_standard_error_by_hand() {
        // 1, 2, 3, 6: mean 3, sample variance 14 / 3, over 4
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0, 6.0]);
        assert!((mean - 3.0).abs() < 1e-12 && (error - (14.0 / 12.0f64).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_error(&[]), (0.0, 0.0));
    }

    #[test]
    fn harm_is_what_chance_does_not_explain() {
        let tally = |losses: usize, gains: usize| Tally::of(&[vec![-0.5; losses], vec![0.5; gains]].concat());
        assert!(tally(20, 0).harmful() && tally(15, 5).harmful());
        assert!(!tally(19, 0).harmful(), "too few to say");
        assert!(!tally(11, 9).harmful() && !tally(0, 40).harmful());
        // What is long ago does not count.
        assert!(!tally(20, 200).harmful());
        assert_eq!(tally(20, 200).mean, 0.5);
    }
}
