//! MD5 (RFC 1321), as many servers make ETags of it: an ETag that is the MD5 of a file's bytes
//! spares sending them again. For nothing else.

/// Rotations of the four rounds.
const TURNS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];

/// The constants of the steps: 2^32 times the sines of 1 to 64.
fn sines() -> [u32; 64] {
    std::array::from_fn(|step| (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32)
}

fn block(state: &mut [u32; 4], block: &[u8], sines: &[u32; 64]) {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let (mixed, word) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = mixed
            .wrapping_add(a)
            .wrapping_add(sines[step])
            .wrapping_add(words[word]);
        let turned = sum.rotate_left(TURNS[step / 16][step % 4]);
        (a, d, c, b) = (d, c, b, b.wrapping_add(turned));
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(more);
    }
}

/// The MD5 of some bytes.
pub fn md5(bytes: &[u8]) -> [u8; 16] {
    let sines = sines();
    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let whole = bytes.chunks_exact(64);
    let mut rest = whole.remainder().to_vec();
    whole.for_each(|chunk| block(&mut state, chunk, &sines));
    rest.push(0x80);
    rest.resize((rest.len() + 8).next_multiple_of(64) - 8, 0);
    rest.extend_from_slice(&(bytes.len() as u64).wrapping_mul(8).to_le_bytes());
    rest.chunks_exact(64)
        .for_each(|chunk| block(&mut state, chunk, &sines));
    let mut sum = [0; 16];
    for (bytes, word) in sum.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::hex;

    #[test]
    fn published_sums() {
        for (text, sum) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(&md5(text.as_bytes())), sum, "{text}");
        }
        // Of lengths around those of a block.
        assert_eq!(hex(&md5(&[b'a'; 55])), "ef1772b6dff9a122358552954ad0df65");
        assert_eq!(hex(&md5(&[b'a'; 64])), "014842d480b571495a4a0363793f7367");
    }
}
