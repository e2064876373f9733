//! CRC-32/ISO-HDLC, the one of PNG, zip and Ethernet, as a `const fn`.
//!
//! Source: the catalogue of parametrised CRC algorithms (width 32, reflected polynomial 0xedb88320, initial value and
//! final exclusive or all ones, check value 0xcbf43926), byte-wise as in RFC 1952, section 8.

const REFLECTED_POLYNOMIAL: u32 = 0xedb8_8320;

/// What one byte does to an empty register.
static BYTE_STEPS: [u32; 256] = byte_steps();

/// CRC-32 of `bytes`.
pub const fn crc32(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        register = register >> 8 ^ BYTE_STEPS[(register as u8 ^ byte) as usize];
        rest = tail;
    }
    !register
}

const fn byte_steps() -> [u32; 256] {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = if register & 1 == 1 { register >> 1 ^ REFLECTED_POLYNOMIAL } else { register >> 1 };
            bit += 1;
        }
        steps[byte] = register;
        byte += 1;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn agrees_with_the_published_check_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        // The CRC of every empty IEND chunk of every PNG.
        assert_eq!(crc32(b"IEND"), 0xae42_6082);
    }
}
