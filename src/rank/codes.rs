//! Token states as small integers: 8 or 4 bits a value and one scale a token.
//!
//! A state x becomes round(x / s) with s = max|x| / (2^(bits−1) − 1), kept per token, so a code is always in range and
//! the largest value of every token is exact up to rounding of the scale.

/// Bits for one value of a token state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Four,
    Eight,
}

impl Bits {
    /// `None` for anything but 4 and 8.
    pub fn new(bits: i64) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Bytes for one token of `dim` values: two 4-bit values share a byte, the even one in the low half.
    pub fn bytes(self, dim: usize) -> usize {
        (dim * self.count()).div_ceil(8)
    }

    fn largest(self) -> f32 {
        match self {
            Self::Four => 7.0,
            Self::Eight => 127.0,
        }
    }
}

/// The token states of one memory, coded.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenCodes {
    bits: Bits,
    dim: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl TokenCodes {
    /// Codes `states`, rows of `dim` values each.
    pub fn encode(states: &[f32], dim: usize, bits: Bits) -> Self {
        let mut coded = Self { bits, dim, codes: Vec::new(), scales: Vec::new() };
        coded.codes.reserve(states.len() / dim.max(1) * bits.bytes(dim));
        for state in states.chunks_exact(dim) {
            let scale = state.iter().fold(0f32, |max, x| max.max(x.abs())) / bits.largest();
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let code = |x: f32| (x * inverse).round() as i8;
            match bits {
                Bits::Eight => coded.codes.extend(state.iter().map(|&x| code(x) as u8)),
                Bits::Four => coded.codes.extend(state.chunks(2).map(|pair| {
                    let high = pair.get(1).map_or(0, |&x| code(x));
                    (code(pair[0]) as u8 & 0x0f) | ((high as u8) << 4)
                })),
            }
            coded.scales.push(scale);
        }
        coded
    }

    /// Takes codes and little-endian scales as they were stored. `None` when the lengths do not fit each other.
    pub fn from_bytes(codes: Vec<u8>, scales: &[u8], dim: usize, bits: Bits) -> Option<Self> {
        let scales: Vec<f32> = scales
            .len()
            .is_multiple_of(4)
            .then(|| scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())?;
        let fits = codes.len() == scales.len() * bits.bytes(dim) && scales.iter().all(|s| s.is_finite() && *s >= 0.0);
        fits.then_some(Self { bits, dim, codes, scales })
    }

    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales as they are stored: four little-endian bytes a token.
    pub fn scale_bytes(&self) -> Vec<u8> {
        self.scales.iter().flat_map(|s| s.to_le_bytes()).collect()
    }

    /// How many tokens.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// Writes the states of token `token` into `state`, `dim` values.
    pub fn decode(&self, token: usize, state: &mut [f32]) {
        let width = self.bits.bytes(self.dim);
        let codes = &self.codes[token * width..(token + 1) * width];
        let scale = self.scales[token];
        match self.bits {
            Bits::Eight => state.iter_mut().zip(codes).for_each(|(x, &code)| *x = f32::from(code as i8) * scale),
            Bits::Four => state.chunks_mut(2).zip(codes).for_each(|(pair, &code)| {
                pair[0] = f32::from(((code << 4) as i8) >> 4) * scale;
                if let Some(high) = pair.get_mut(1) {
                    *high = f32::from((code as i8) >> 4) * scale;
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(coded: &TokenCodes, token: usize) -> Vec<f32> {
        let mut state = vec![0.0; coded.dim];
        coded.decode(token, &mut state);
        state
    }

    #[test]
    fn four_bits_by_hand() {
        // scale .7 / 7 = .1; codes 7, −3, 0 and, in the odd last place, 2 (from .16 / .1 = 1.6)
        let coded = TokenCodes::encode(&[0.7, -0.3, 0.0, 0.16, 0.7], 5, Bits::Four);
        assert_eq!(coded.codes(), [0x07 | 0xd0, 0x20, 0x07]);
        for (got, want) in decoded(&coded, 0).iter().zip([0.7, -0.3, 0.0, 0.2, 0.7]) {
            assert!((got - want).abs() < 1e-6);
        }
    }

    #[test]
    fn a_zero_state_stays_zero() {
        for bits in [Bits::Four, Bits::Eight] {
            assert_eq!(decoded(&TokenCodes::encode(&[0.0; 4], 4, bits), 0), [0.0; 4]);
        }
    }

    #[test]
    fn stored_bytes_of_another_shape_are_refused() {
        let coded = TokenCodes::encode(&[0.5; 8], 4, Bits::Eight);
        let (codes, scales) = (coded.codes().to_vec(), coded.scale_bytes());
        assert_eq!(TokenCodes::from_bytes(codes.clone(), &scales, 4, Bits::Eight), Some(coded));
        assert_eq!(TokenCodes::from_bytes(codes.clone(), &scales[1..], 4, Bits::Eight), None);
        assert_eq!(TokenCodes::from_bytes(codes.clone(), &scales, 4, Bits::Four), None);
        assert_eq!(TokenCodes::from_bytes(codes, &[0xff; 8], 4, Bits::Eight), None);
    }

    proptest! {
        #[test]
        fn no_value_moves_by_more_than_half_a_step(state in prop::collection::vec(-1f32..1.0, 1..20), four in any::<bool>()) {
            let bits = if four { Bits::Four } else { Bits::Eight };
            let coded = TokenCodes::encode(&state, state.len(), bits);
            let step = state.iter().fold(0f32, |m, x| m.max(x.abs())) / bits.largest();
            for (got, want) in decoded(&coded, 0).iter().zip(&state) {
                prop_assert!((got - want).abs() <= step * 0.5001, "{} {} {}", got, want, step);
            }
        }
    }
}
