//! Retrieval-induced forgetting: what is retrieved and turns out not to answer is suppressed, by kind of question.
//!
//! The seed's Algorithm 1 (the lethe paper). A query belongs to the cue cluster c(q) nearest to it. Before reranking each
//! candidate m pays for what it did to such queries: s̃(m) = s(m) − α · s_{m,c(q)}. After it, every member x of the pool
//! of P candidates adds Δ to s_{x,c(q)}, by one of two rules below.
//!
//! Three departures: the score is capped, it decays when read and not only when written, and the penalty can be measured
//! in standard deviations of the pool's scores, because fused scores lie so close that the paper's α sinks a top hit.

/// How a member of the pool is blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearningRule {
    /// Δ = η (1 − r_init / P) σ(−s): whoever ranked high and scored low with the reranker.
    Uniform,
    /// Δ = η max(0, r_final − r_init) / P · σ(−s): whoever the reranker moved down, by how far.
    RankGap,
}

impl LearningRule {
    pub const NAMES: [(&'static str, Self); 2] = [("rank_gap", Self::RankGap), ("uniform", Self::Uniform)];
}

/// A member of the pool after reranking. Ranks start at 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolMember {
    pub initial_rank: usize,
    pub final_rank: usize,
    /// The reranker's score, a logit: 0 is even odds of being relevant.
    pub reranked: f64,
}

/// Δ for one member of a pool of `pool` candidates, at learning rate `eta` (η).
///
/// A final rank beyond the pool counts as its last place, so that Δ is in [0, η).
pub fn blame(rule: LearningRule, member: PoolMember, pool: usize, eta: f64) -> f64 {
    if pool == 0 {
        return 0.0;
    }
    let (size, initial) = (pool as f64, member.initial_rank.min(pool) as f64);
    let share = match rule {
        LearningRule::Uniform => 1.0 - initial / size,
        LearningRule::RankGap => (member.final_rank.min(pool) as f64 - initial).max(0.0) / size,
    };
    eta * share * sigmoid(-member.reranked)
}

/// The logistic function σ(x) = 1 / (1 + e^−x).
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// How a stored suppression fades and how far it may go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retention {
    /// The highest score a memory can have in a cluster.
    pub cap: f64,
    /// After this many days without an update a score counts half. Zero: it never fades.
    pub half_life_days: f64,
}

impl Retention {
    /// What a score stored `age_days` ago counts now. Clocks that run backwards do not raise it.
    pub fn read(&self, score: f64, age_days: f64) -> f64 {
        if self.half_life_days > 0.0 { score * 0.5f64.powf(age_days.max(0.0) / self.half_life_days) } else { score }
    }

    /// The score to store after adding `delta` to one stored `age_days` ago, within [0, cap].
    pub fn add(&self, score: f64, age_days: f64, delta: f64) -> f64 {
        (self.read(score, age_days) + delta).clamp(0.0, self.cap)
    }
}

/// The unit of α in s̃ = s − α · suppression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PenaltyScale {
    /// One standard deviation of the scores that are penalised.
    Spread,
    /// One, as the paper has it.
    Raw,
}

impl PenaltyScale {
    pub const NAMES: [(&'static str, Self); 2] = [("spread", Self::Spread), ("raw", Self::Raw)];

    /// What α is multiplied with, for candidates whose scores have standard deviation `deviation`.
    pub fn unit(self, deviation: f64) -> f64 {
        match self {
            Self::Spread => deviation,
            Self::Raw => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(initial_rank: usize, final_rank: usize, reranked: f64) -> PoolMember {
        PoolMember { initial_rank, final_rank, reranked }
    }

    #[test]
    fn uniform_blames_high_rank_and_low_score() {
        // η .1, P 4, rank 1, score 0: .1 · (1 − 1/4) · ½
        assert!((blame(LearningRule::Uniform, member(1, 3, 0.0), 4, 0.1) - 0.0375).abs() < 1e-12);
        // the last of the pool is not blamed
        assert_eq!(blame(LearningRule::Uniform, member(4, 1, 0.0), 4, 0.1), 0.0);
        // σ(−2) = .119202922…
        assert!(
            (blame(LearningRule::Uniform, member(2, 2, 2.0), 4, 0.1) - 0.1 * 0.5 * 0.119_202_922_022_117_55).abs()
                < 1e-12
        );
    }

    #[test]
    fn rank_gap_blames_only_a_fall() {
        // from 1 to 4 of 4 at score −1: .1 · 3/4 · σ(1) = .731058578…
        let fallen = blame(LearningRule::RankGap, member(1, 4, -1.0), 4, 0.1);
        assert!((fallen - 0.075 * 0.731_058_578_630_004_9).abs() < 1e-12);
        assert_eq!(blame(LearningRule::RankGap, member(4, 1, -1.0), 4, 0.1), 0.0);
        // beyond the pool counts as its last place
        assert_eq!(blame(LearningRule::RankGap, member(1, 900, -1.0), 4, 0.1), fallen);
        assert_eq!(blame(LearningRule::RankGap, member(1, 2, 0.0), 0, 0.1), 0.0);
    }

    #[test]
    fn a_score_fades_by_half_and_stays_within_its_bounds() {
        let retention = Retention { cap: 1.0, half_life_days: 10.0 };
        assert!((retention.read(0.8, 20.0) - 0.2).abs() < 1e-12);
        assert_eq!(retention.read(0.8, -5.0), 0.8);
        assert!((retention.add(0.8, 10.0, 0.1) - 0.5).abs() < 1e-12);
        assert_eq!(retention.add(0.9, 0.0, 0.5), 1.0);
        assert_eq!(retention.add(0.9, 0.0, -2.0), 0.0);
        assert_eq!(Retention { cap: 1.0, half_life_days: 0.0 }.read(0.8, 1e9), 0.8);
    }

    #[test]
    fn the_penalty_has_a_unit() {
        assert_eq!(PenaltyScale::Spread.unit(0.02), 0.02);
        assert_eq!(PenaltyScale::Raw.unit(0.02), 1.0);
    }
}
