//! UUIDs: 16 bytes, random or derived from the ids of a pool and an object.

use crate::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::str::FromStr;

/// A UUID (RFC 9562).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Makes a random UUID (version 4).
    ///
    /// # Errors
    /// If the kernel returns no random numbers.
    pub fn random() -> Result<Uuid> {
        let mut bytes = [0; 16];
        let got = getrandom(&mut bytes, GetRandomFlags::empty());
        match got.map_err(|e| Error::of("random numbers for a UUID", e))? {
            16 => Ok(Uuid::version(bytes, 4)),
            // getrandom(2) fills a buffer of up to 256 bytes whole.
            n => Err(Error::of(
                format!("{n} of 16 random bytes for a UUID"),
                rustix::io::Errno::IO,
            )),
        }
    }

    /// Returns the UUID of these bytes, with the version and variant bits set.
    pub(crate) fn version(mut bytes: [u8; 16], version: u8) -> Uuid {
        bytes[6] = bytes[6] & 0x0f | version << 4;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Uuid> {
        let wrong = || Error::invalid(format!("'{text}' is no UUID"));
        let places = [8, 13, 18, 23];
        let bytes = text.as_bytes();
        if bytes.len() != 36 || places.iter().any(|&at| bytes[at] != b'-') {
            return Err(wrong());
        }
        let mut uuid = [0; 16];
        let digits = bytes
            .iter()
            .enumerate()
            .filter(|(at, _)| !places.contains(at));
        for (n, (_, digit)) in digits.enumerate() {
            let digit = char::from(*digit).to_digit(16).ok_or_else(wrong)?;
            uuid[n / 2] = uuid[n / 2] << 4 | digit as u8;
        }
        Ok(Uuid(uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let uuid = Uuid::random().unwrap();
        assert_eq!(uuid.to_string().parse::<Uuid>().unwrap(), uuid);
        assert_eq!(uuid.to_string().as_bytes()[14], b'4');
        assert_ne!(uuid, Uuid::random().unwrap());
        for wrong in [
            "",
            "x",
            "00000000-0000-0000-0000-00000000000",
            "00000000-0000-0000-0000-00000000000g",
            "000000000000-0000-0000-0000-00000000",
        ] {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
        }
    }
}
