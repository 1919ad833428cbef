//! How much a query token says, by how rare it is.

/// Inverse document frequency as BM25 has it (Robertson and Spärck Jones): ln(1 + (N − df + ½) / (df + ½)).
///
/// `turns` is N, the number of turns in scope, `containing` is df, how many of them hold the token. Always positive; a
/// token nobody holds weighs most. `containing` above `turns` counts as `turns`.
pub fn inverse_document_frequency(turns: usize, containing: usize) -> f64 {
    let (n, df) = (turns as f64, containing.min(turns) as f64);
    (1.0 + (n - df + 0.5) / (df + 0.5)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // ln(1 + 97.5 / 3.5), ln(1 + 100.5 / 0.5), ln(1 + 0.5 / 100.5)
        assert!((inverse_document_frequency(100, 3) - 3.362_357_548).abs() < 1e-8);
        assert!((inverse_document_frequency(100, 0) - 5.308_267_697).abs() < 1e-8);
        assert!((inverse_document_frequency(100, 100) - 0.004_962_789).abs() < 1e-8);
        assert_eq!(inverse_document_frequency(100, 101), inverse_document_frequency(100, 100));
    }
}
