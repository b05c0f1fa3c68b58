//! Planted faults. The simulator has to find each of them, to show that it would find such a fault
//! in real code.
//!
//! Without the feature `plant`, no fault is active. With the feature, `FOREBAY_PLANT` names the
//! active fault.

/// Whether the fault `name` is active.
#[cfg(feature = "plant")]
pub fn planted(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = NAME.get_or_init(|| std::env::var("FOREBAY_PLANT").ok());
    planted.as_deref() == Some(name)
}

/// Whether the fault `name` is active.
#[cfg(not(feature = "plant"))]
#[inline(always)]
pub const fn planted(_name: &str) -> bool {
    false
}
