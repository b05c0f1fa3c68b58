//! Decides which action is due for a campaign at a given time. The decision has no side effects;
//! `service` carries out the action.

use crate::record::{AtEnd, Campaign, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// An interrupted move has to be continued, or old data of a move have to be removed.
    CarryOn,
    /// The owner has to be warned: the campaign ends within this many seconds.
    Warn(u64),
    /// The campaign has to be ended.
    End,
    /// The data have to be removed, because the grace period has passed.
    Remove,
}

/// Returns the action that is due for a campaign at `now`, in seconds since 1970. `warn`: the times
/// before the end at which its owner is warned. Seconds, longest first.
pub fn due(c: &Campaign, warn: &[u64], now: u64) -> Due {
    if c.moving.is_some() || !c.leftovers.is_empty() {
        return Due::CarryOn;
    }
    match c.state {
        State::Archived => Due::Nothing,
        State::Expired if now >= c.ends.saturating_add(c.grace) => Due::Remove,
        State::Expired => Due::Nothing,
        State::Active => match c.left(now) {
            // The campaign has ended, and its owner was notified.
            0 if c.at_end == AtEnd::Keep && c.warned == Some((c.ends, 0)) => Due::Nothing,
            0 => Due::End,
            left => {
                let nearest = warn.iter().copied().filter(|&before| left <= before).min();
                let was_told = |before| c.warned.is_some_and(|w| w.0 == c.ends && w.1 <= before);
                match nearest {
                    // For a campaign that is shorter than the warning time, there is no warning.
                    Some(before) if c.ends - c.created <= before => Due::Nothing,
                    Some(before) if !was_told(before) => Due::Warn(before),
                    _ => Due::Nothing,
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moves::tests::campaign;
    use crate::record::Moving;

    #[test]
    fn a_life() {
        let mut c = campaign("/x");
        (c.created, c.ends, c.grace) = (1000, 2000, 50);
        let warn = [5000, 500, 100];
        let due = |c: &Campaign, now| due(c, &warn, now);
        assert_eq!(due(&c, 1000), Due::Nothing);
        assert_eq!(due(&c, 1500), Due::Warn(500));
        c.warned = Some((2000, 500));
        assert_eq!(due(&c, 1600), Due::Nothing);
        assert_eq!(due(&c, 1950), Due::Warn(100));
        c.warned = Some((2000, 100));
        assert_eq!(due(&c, 1999), Due::Nothing);
        assert_eq!(due(&c, 2000), Due::End);
        // A campaign with a new end gets new warnings.
        c.ends = 3000;
        assert_eq!(due(&c, 2950), Due::Warn(100));
        c.state = State::Expired;
        assert_eq!(due(&c, 3049), Due::Nothing);
        assert_eq!(due(&c, 3050), Due::Remove);
        c.state = State::Archived;
        assert_eq!(due(&c, 9999), Due::Nothing);
        c.moving = Some(Moving {
            tier: "t".into(),
            place: "/y".into(),
            then: State::Active,
        });
        assert_eq!(due(&c, 0), Due::CarryOn);
    }
}
