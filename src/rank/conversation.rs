//! What a conversation says about a turn beyond the turn's own words.
//!
//! An answer is understood through the question before it, what is talked about stands in several turns, who asks does not tell,
//! and a question that names a speaker or a month wants what was said by them or then. With best_i(m) the evidence of the token
//! states ([`super::evidence`]), m − 1 the turn before m in its session and w_i the weights of the query's tokens,
//!
//! * R_i(m) = best_i(m) + a · max(0, best_i(m − 1) − best_i(m)) if m − 1 asks, else best_i(m);
//! * N_i(m) = max over the turns at most [`REACH`] before or after m in its session, m included, of best_i;
//! * score(m) = Σ_i w_i ((1 − β) R_i(m) + β N_i(m)) / Σ_i w_i − q \[m asks\] + p \[m's speaker is named\] + t \[m is of the month named\].
//!
//! Found by measurement (docs/quality.md); a, β, q, p and t are lethe's.

/// How many turns before and after a turn still say what it is about.
pub const REACH: usize = 2;

/// The weights. All zero: the evidence alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priors {
    /// a, how much of what a question has more of its answer is given, 0 to 1.
    pub answer: f64,
    /// β, the share of the neighbourhood, 0 to 1.
    pub neighbours: f64,
    /// q, what a turn that asks loses, in units of a cosine like p and t.
    pub asking: f64,
    /// p, what the turns of a speaker gain that the query names.
    pub speaker: f64,
    /// t, what the turns of a month gain that the query names.
    pub month: f64,
}

impl Priors {
    /// Whether they leave every score as it is.
    pub fn are_zero(&self) -> bool {
        let Self { answer, neighbours, asking, speaker, month } = *self;
        [answer, neighbours, asking, speaker, month].iter().all(|weight| *weight == 0.0)
    }

    /// Whether they ask for the turns around a candidate.
    pub fn look_around(&self) -> bool {
        self.answer != 0.0 || self.neighbours != 0.0
    }
}

/// What is known of a turn besides its token states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// It ends in a question mark.
    pub asks: bool,
    /// The query names its speaker.
    pub named: bool,
    /// The query names the month in which it was said.
    pub dated: bool,
}

/// A turn as a query's tokens meet it.
#[derive(Clone, Copy, Debug)]
pub struct Met<'a> {
    /// best_i of each query token.
    pub best: &'a [f32],
    pub traits: Traits,
}

/// The score of a turn: `before` is the turn before it, `around` are the turns within reach, without itself.
pub fn score<'a>(
    turn: Met,
    before: Option<Met>,
    around: impl IntoIterator<Item = Met<'a>>,
    weights: &[f64],
    priors: &Priors,
) -> f64 {
    let mut highest = turn.best.to_vec();
    for neighbour in around {
        highest.iter_mut().zip(neighbour.best).for_each(|(most, best)| *most = most.max(*best));
    }
    let question = before.filter(|before| before.traits.asks);
    let (mut sum, mut total) = (0.0, 0.0);
    for (i, weight) in weights.iter().enumerate() {
        let own = f64::from(turn.best[i]);
        let given = question.map_or(0.0, |question| (f64::from(question.best[i]) - own).max(0.0));
        let meant = own + priors.answer * given;
        sum += weight * ((1.0 - priors.neighbours) * meant + priors.neighbours * f64::from(highest[i]));
        total += weight;
    }
    let if_so = |so: bool, amount: f64| if so { amount } else { 0.0 };
    let Traits { asks, named, dated } = turn.traits;
    let told = if_so(named, priors.speaker) + if_so(dated, priors.month) - if_so(asks, priors.asking);
    (if total > 0.0 { sum / total } else { 0.0 }) + told
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Priors = Priors { answer: 0.0, neighbours: 0.0, asking: 0.0, speaker: 0.0, month: 0.0 };
    const SOME: Priors = Priors { answer: 0.5, neighbours: 0.25, asking: 0.02, speaker: 0.03, month: 0.04 };
    const WEIGHTS: [f64; 2] = [3.0, 1.0];

    fn met(best: &[f32], asks: bool) -> Met<'_> {
        Met { best, traits: Traits { asks, ..Traits::default() } }
    }

    #[test]
    fn by_hand() {
        let (turn, asked) = (met(&[0.2, 0.8], false), met(&[0.6, 0.4], true));
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got} {want}");
        // by itself, whatever the neighbourhood weighs: (3 · .2 + .8) / 4
        close(score(turn, None, [], &WEIGHTS, &NONE), 0.35);
        close(score(turn, None, [], &WEIGHTS, &SOME), 0.35);
        // R = (.2 + .5 · .4, .8), N = (.6, .8): (3 (.75 · .4 + .25 · .6) + .8) / 4
        close(score(turn, Some(asked), [asked], &WEIGHTS, &SOME), 0.5375);
        // the turn before does not ask: R = (.2, .8)
        let told = met(&[0.6, 0.4], false);
        close(score(turn, Some(told), [told], &WEIGHTS, &SOME), (3.0 * (0.75 * 0.2 + 0.25 * 0.6) + 0.8) / 4.0);
    }

    #[test]
    fn traits_are_added() {
        let with = |asks, named, dated| {
            let turn = Met { best: &[0.5, 0.5], traits: Traits { asks, named, dated } };
            score(turn, None, [], &WEIGHTS, &SOME) - 0.5
        };
        for (got, want) in [
            (with(true, false, false), -0.02),
            (with(false, true, false), 0.03),
            (with(false, false, true), 0.04),
            (with(true, true, true), 0.05),
        ] {
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
    }

    #[test]
    fn a_query_without_weight_has_no_evidence() {
        assert_eq!(score(met(&[0.5], false), None, [], &[0.0], &SOME), 0.0);
    }
}
