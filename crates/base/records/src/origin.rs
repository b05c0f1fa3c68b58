//! The relation of a pool's object to its copy at the pool's origin.
//!
//! The states are those of hierarchical storage management: an object exists in the pool only, is
//! archived (the origin has it, too), or released (only the origin has it). An archived object is
//! dirty if it has changed since both sides were the same. Dirtiness follows from the change time
//! and isn't stored. So no writer has to record it, and no death can leave it wrong.

/// Flag in the first word of a mark in a record: `is_mapped`.
const MAPPED: u64 = 1 << 8;

/// Where an object's content is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OriginState {
    /// In the pool only.
    #[default]
    None,
    /// In the pool and, perhaps in an older version, at the origin.
    Archived,
    /// At the origin only: the bytes of a file, the entries of a directory.
    Released,
}

/// An object's state, and its version when pool and origin were last the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginMark {
    pub state: OriginState,
    /// Fingerprint of the origin's copy at that time.
    pub print: u64,
    /// Change time of the object in the pool at that time, in nanoseconds since 1970. Of a
    /// directory: a fingerprint of its owner and mode.
    pub synced: i64,
}

impl OriginMark {
    /// Number of 64-bit words of a mark in a record.
    pub(crate) const WORDS: usize = 3;

    /// Whether the content isn't in the pool.
    #[inline]
    pub fn is_released(&self) -> bool {
        self.state == OriginState::Released
    }

    /// Whether pool and origin have the same version of an object whose change time is `changed`.
    #[inline]
    pub fn is_clean(&self, changed: i64) -> bool {
        self.state != OriginState::None && self.synced == changed
    }

    /// Encodes the mark together with [`crate::record::Inode::is_mapped`].
    pub(crate) fn words(&self, is_mapped: bool) -> [u64; OriginMark::WORDS] {
        let mapped = if is_mapped { MAPPED } else { 0 };
        [self.state as u64 | mapped, self.print, self.synced as u64]
    }

    /// Decodes the mark and `is_mapped`; None if the first word is no state.
    pub(crate) fn from_words(
        [state, print, synced]: [u64; OriginMark::WORDS],
    ) -> Option<(OriginMark, bool)> {
        let mark = OriginMark {
            state: OriginState::from_number(state & !MAPPED)?,
            print,
            synced: synced as i64,
        };
        Some((mark, state & MAPPED != 0))
    }
}

impl OriginState {
    /// The state with this number; None if there is none.
    pub fn from_number(n: u64) -> Option<OriginState> {
        [
            OriginState::None,
            OriginState::Archived,
            OriginState::Released,
        ]
        .into_iter()
        .nth(usize::try_from(n).ok()?)
    }
}
