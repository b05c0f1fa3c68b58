//! Moving a campaign's data to another place, and hiding them.
//!
//! The steps of a move. A process may be killed after any of them:
//!
//! 1. The record gets the new place (`moving`).
//! 2. The data are hidden.
//! 3. The data are copied to the hidden name of the new place, repeatedly until a copy finds
//!    nothing to do.
//! 4. The data at the new place get their visible name.
//! 5. The record gets the new place as that of the data, and the old one as still to be removed.
//! 6. The old data are removed, and the record no longer names them.
//!
//! If a record says that a move has begun, [`carry_on`] starts at step 2. A step that was carried
//! out before does nothing. If the data can't be copied, they regain their visible name, and the
//! move will be tried again.

use crate::Result;
use crate::area::Area;
use crate::record::{Moving, State};
use crate::registry::Held;
use crate::tiers::Tiers;

/// Maximum number of copies until one finds nothing to do. Programs that have files open may
/// continue to write.
const COPIES: usize = 5;

/// Moves the data of a campaign to another tier. Then the campaign's state becomes `then`. The data
/// may have been hidden before, for a grace period. Blocks.
///
/// # Errors
/// A pool uses the data; the new place has data already; something can't be copied. If the record
/// says that the move has begun, [`carry_on`] tries it again.
pub fn to_tier(held: &mut Held, tiers: &Tiers, tier: &str, then: State) -> Result<()> {
    let c = &held.campaign;
    if let Some(moving) = &c.moving {
        let there = &moving.tier;
        return Err(format!("'{}' is being moved to {there} already", c.name));
    }
    let place = tiers.get(tier)?.place_of(&c.owner, &c.name);
    if place == c.place {
        return Err(format!("'{}' is on the tier {tier} already", c.name));
    }
    let to = Area::open(&place)?;
    for area in [Some(&to), to.hidden().as_ref()].into_iter().flatten() {
        if area.exists()? {
            return Err(format!("there is something at {}", area.place()));
        }
    }
    held.campaign.moving = Some(Moving {
        tier: tier.to_owned(),
        place,
        then,
    });
    held.save()?;
    carry_on(held)
}

/// Continues a move that has begun, and removes the old data of earlier moves.
///
/// # Errors
/// The errors of [`to_tier`].
pub fn carry_on(held: &mut Held) -> Result<()> {
    if let Some(moving) = held.campaign.moving.clone() {
        let from = Area::open(&held.campaign.place)?;
        let to = Area::open(&moving.place)?;
        let was_hidden = held.campaign.state == State::Expired;
        from.hide(true)?;
        if let Err(why) = copy(&from, &to) {
            if !was_hidden {
                from.hide(false)?;
            }
            held.campaign.note(format!(
                "can't be moved to {}: {why}; tried again later",
                moving.tier
            ));
            held.save()?;
            return Err(why);
        }
        let c = &mut held.campaign;
        let old = from.hidden().unwrap_or(from).place().to_owned();
        c.leftovers.push(old);
        c.note(format!("moved from {} to {}", c.tier, moving.tier));
        (c.tier, c.place, c.state) = (moving.tier, moving.place, moving.then);
        c.moving = None;
        held.save()?;
    }
    while let Some(place) = held.campaign.leftovers.first() {
        Area::open(place)?.remove()?;
        held.campaign.leftovers.remove(0);
        held.save()?;
    }
    Ok(())
}

/// Copies the data to the new place until a copy finds nothing to do. Then gives them their visible
/// name.
fn copy(from: &Area, to: &Area) -> Result<()> {
    let from = from.hidden().unwrap_or(Area::open(from.place())?);
    let beside = to.hidden();
    // If the new place has its visible name, its data are complete, though the record doesn't say
    // so yet.
    let into = match (&beside, to.exists()?) {
        (Some(hidden), false) => hidden,
        _ => to,
    };
    for _ in 0..COPIES {
        if from.copy_to(into, false)?.moved_files == 0 {
            return to.hide(false);
        }
    }
    Err("programs go on changing it; end them first".into())
}

/// Hides the data of a campaign that has ended and whose data will be deleted.
///
/// # Errors
/// The data can't be renamed. (Data in a bucket aren't renamed: they stay visible until the grace
/// period has passed.)
pub fn expire(held: &mut Held) -> Result<()> {
    Area::open(&held.campaign.place)?.hide(true)?;
    held.campaign.state = State::Expired;
    held.campaign.note("has ended");
    held.save()
}

/// Restores data from the grace period or the archive. The campaign gets a new end, `seconds` from
/// now.
///
/// # Errors
/// The campaign hasn't ended; the data can't be moved.
pub fn restore(held: &mut Held, tiers: &Tiers, tier: Option<&str>, seconds: u64) -> Result<()> {
    let (c, now) = (&mut held.campaign, crate::now());
    c.is_untold = false;
    match c.state {
        State::Active => Err(format!("'{}' hasn't ended", c.name)),
        State::Expired => {
            Area::open(&c.place)?.hide(false)?;
            (c.state, c.ends) = (State::Active, now + seconds);
            c.note("restored");
            held.save()?;
            match tier {
                Some(tier) if tier != held.campaign.tier => {
                    to_tier(held, tiers, tier, State::Active)
                }
                _ => Ok(()),
            }
        }
        State::Archived => {
            let tier = tier.map_or_else(|| tiers.only(), Ok)?.to_owned();
            // Set before the move. A later pass may finish the move, and must not end the campaign
            // again.
            c.ends = now + seconds;
            c.note(format!("restored to {tier}"));
            to_tier(held, tiers, &tier, State::Active)
        }
    }
}

/// Removes the data and the record.
///
/// # Errors
/// Something can't be removed. The record stays.
pub fn remove(mut held: Held) -> Result<()> {
    let c = &held.campaign;
    let mut areas = vec![c.place.clone()];
    areas.extend(c.moving.iter().map(|m| m.place.clone()));
    for place in areas {
        let area = Area::open(&place)?;
        for area in [Some(&area), area.hidden().as_ref()].into_iter().flatten() {
            area.remove()?;
        }
    }
    held.campaign.moving = None;
    carry_on(&mut held)?;
    held.forget()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::record::Campaign;
    use crate::registry::Registry;
    use std::fs;
    use std::path::Path;

    /// Returns a campaign whose data are at `place`.
    pub fn campaign(place: &str) -> Campaign {
        Campaign {
            tier: "fast".into(),
            place: place.into(),
            ..Campaign::new("c", "me")
        }
    }

    fn tiers(top: &Path) -> Tiers {
        let text = format!(
            "archive = 'slow'\n[tier.fast]\npath = '{0}/fast'\n[tier.slow]\npath = '{0}/slow'\n",
            top.display()
        );
        let me = ("me", Path::new("/"));
        Tiers::parse(&text, Path::new("t.toml"), &top.join("registry"), me).unwrap()
    }

    /// Returns the tiers and registry of a campaign with files on the fast tier.
    fn begun(name: &str) -> (std::path::PathBuf, Tiers, Registry) {
        let top = std::env::temp_dir().join(format!("fbc-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let tiers = tiers(&top);
        let registry = Registry::open(&tiers.registry, "me").unwrap();
        let place = tiers.get("fast").unwrap().place_of("me", "c");
        Area::open(&place).unwrap().make().unwrap();
        fs::create_dir(Path::new(&place).join("d")).unwrap();
        fs::write(Path::new(&place).join("d/f"), "bytes").unwrap();
        std::os::unix::fs::symlink("d/f", Path::new(&place).join("l")).unwrap();
        drop(registry.add(campaign(&place)).unwrap());
        (top, tiers, registry)
    }

    fn hold(registry: &Registry) -> Held {
        registry.hold("c", std::time::Duration::ZERO).unwrap()
    }

    fn listed(top: &Path, tier: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(top.join(tier))
            .map(|all| {
                all.map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }

    #[test]
    fn a_move_can_end_anywhere_and_goes_on() {
        let (top, tiers, registry) = begun("moves");
        let fast = top.join("fast/c");
        let slow = top.join("slow/c");
        fs::create_dir(top.join("slow")).unwrap();
        let moving = Moving {
            tier: "slow".into(),
            place: slow.to_str().unwrap().into(),
            then: State::Archived,
        };
        let hidden = |path: &Path| {
            let area = Area::open(path.to_str().unwrap()).unwrap();
            area.hidden().unwrap()
        };
        for step in 0..4 {
            let mut held = hold(&registry);
            held.campaign.moving = Some(moving.clone());
            held.save().unwrap();
            let from = Area::open(fast.to_str().unwrap()).unwrap();
            let to = Area::open(slow.to_str().unwrap()).unwrap();
            if step > 0 {
                from.hide(true).unwrap();
            }
            if step > 1 {
                hidden(&fast).copy_to(&hidden(&slow), false).unwrap();
            }
            if step > 2 {
                to.hide(false).unwrap();
            }
            drop(held);
            let mut held = hold(&registry);
            carry_on(&mut held).unwrap();
            let c = &held.campaign;
            assert_eq!((c.tier.as_str(), c.state), ("slow", State::Archived));
            assert!(c.moving.is_none() && c.leftovers.is_empty());
            assert_eq!(fs::read(slow.join("l")).unwrap(), b"bytes");
            assert_eq!(listed(&top, "fast"), [""; 0]);
            assert_eq!(listed(&top, "slow"), ["c"]);
            restore(&mut held, &tiers, None, 100).unwrap();
            assert_eq!(fs::read(fast.join("d/f")).unwrap(), b"bytes");
            assert_eq!(listed(&top, "slow"), [""; 0]);
        }
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn data_that_cant_be_copied_stay_where_they_were() {
        let (top, tiers, registry) = begun("fails");
        // A file in the place of the tier's directory: no directory can be made below it.
        fs::write(top.join("slow"), "").unwrap();
        let mut held = hold(&registry);
        assert!(to_tier(&mut held, &tiers, "slow", State::Archived).is_err());
        assert_eq!(fs::read(top.join("fast/c/d/f")).unwrap(), b"bytes");
        drop(held);
        fs::remove_file(top.join("slow")).unwrap();
        let mut held = hold(&registry);
        if held.campaign.moving.is_none() {
            to_tier(&mut held, &tiers, "slow", State::Archived).unwrap();
        } else {
            carry_on(&mut held).unwrap();
        }
        assert_eq!(held.campaign.state, State::Archived);
        // Data of others at the new place aren't replaced.
        fs::create_dir_all(top.join("fast/c")).unwrap();
        let why = restore(&mut held, &tiers, None, 100).unwrap_err();
        assert!(why.contains("there is something at"), "{why}");
        remove(held).unwrap();
        assert_eq!(listed(&top, "slow"), [""; 0]);
        assert_eq!(listed(&top, "fast"), ["c"]);
        assert!(registry.get("c").is_err());
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn a_grace_period() {
        let (top, tiers, registry) = begun("grace");
        let mut held = hold(&registry);
        expire(&mut held).unwrap();
        assert!(!top.join("fast/c").exists());
        restore(&mut held, &tiers, None, 100).unwrap();
        assert_eq!(fs::read(top.join("fast/c/d/f")).unwrap(), b"bytes");
        let usage = Area::open(&held.campaign.place).unwrap().measure().unwrap();
        assert_eq!((usage.files, usage.bytes), (3, 5));
        expire(&mut held).unwrap();
        remove(held).unwrap();
        assert_eq!(listed(&top, "fast"), [""; 0]);
        fs::remove_dir_all(top).unwrap();
    }
}
