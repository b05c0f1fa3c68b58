//! `forebay campaign`: manages storage with a quota and an end date, both of which `campaignd.rs`
//! watches.

use crate::args::{Down, Up};
use crate::campaign_args::{CampaignCommand, Create, Most, OfCampaign};
use crate::fail::{Fail, code, note};
use crate::files::user_name;
use crate::lifetime::Span;
use crate::nodes::this_host;
use crate::origin::quota_words;
use crate::output::{json, print_notice, write};
use crate::tables::table;
use crate::{down, site, up};
use forebay_backing::Address;
use forebay_campaign::area::{Area, POOL};
use forebay_campaign::record::{AtEnd, Campaign, Member, PoolOf, State};
use forebay_campaign::registry::{Held, LOCK_TIMEOUT, Registry};
use forebay_campaign::service::{self, words};
use forebay_campaign::spec::Spec;
use forebay_campaign::tiers::Tiers;
use forebay_campaign::{moves, now};
use forebay_client::origin::{Quota, Request};
use forebay_client::{Pool, PoolState};
use forebay_media::format_size;

/// Maximum age of the count of a campaign's usage when a pool starts. Seconds.
const COUNTED: u64 = 60;
/// Maximum length of a user's name. Bytes.
const MAX_USER_NAME_BYTES: usize = 64;

pub fn campaign(a: CampaignCommand) -> Result<u8, Fail> {
    let me = user_name(rustix::process::getuid().as_raw());
    let tiers = Tiers::read(&me).map_err(Fail::usage)?;
    let registry = Registry::open(&tiers.registry, &me).map_err(Fail::failed)?;
    let hold = |name: &str| registry.hold(name, LOCK_TIMEOUT).map_err(Fail::failed);
    match a.what {
        OfCampaign::Create(a) => create(&registry, &tiers, &a)?,
        OfCampaign::List { json } => list(&registry, json)?,
        OfCampaign::Show { name, json, count } => {
            if count {
                let mut held = hold(&name)?;
                service::measure(&mut held).map_err(Fail::failed)?;
                held.save().map_err(Fail::failed)?;
            }
            show(&registry.get(&name).map_err(Fail::failed)?, json)?;
        }
        OfCampaign::Path { name } => {
            let c = registry.get(&name).map_err(Fail::failed)?;
            at_its_place(&c)?;
            let area = Area::open(&c.place).map_err(Fail::failed)?;
            write((area.path() + "\n").as_bytes())?;
        }
        OfCampaign::Extend { name, time } => extend(&mut hold(&name)?, &tiers, time)?,
        OfCampaign::Quota { name, size, files } => {
            quota(&mut hold(&name)?, &tiers, (size, files))?;
        }
        OfCampaign::Share { name, users } => share(&mut hold(&name)?, &users)?,
        OfCampaign::Up(a) => return start(hold(&a.name)?, a.pool_name, *a.up),
        OfCampaign::Down(a) => return stop(hold(&a.name)?, &a.down),
        OfCampaign::Migrate { name, tier } => {
            let mut held = hold(&name)?;
            unused(&held.campaign)?;
            at_its_place(&held.campaign)?;
            moved(&mut held, |held| {
                moves::to_tier(held, &tiers, &tier, State::Active)
            })?;
        }
        OfCampaign::Archive { name } => {
            let mut held = hold(&name)?;
            unused(&held.campaign)?;
            let tier = tiers.archive_tier().map_err(Fail::usage)?;
            moved(&mut held, |held| {
                moves::to_tier(held, &tiers, tier, State::Archived)
            })?;
        }
        OfCampaign::Restore { name, tier, time } => {
            let mut held = hold(&name)?;
            let c = &held.campaign;
            let wanted = match &tier {
                Some(tier) => tiers.get(tier),
                None if c.state == State::Archived => tiers.only().and_then(|t| tiers.get(t)),
                None => tiers.get(&c.tier),
            };
            let wanted = wanted.map_err(Fail::usage)?;
            let seconds = within(time, wanted.usual, wanted.longest)?;
            moved(&mut held, |held| {
                moves::restore(held, &tiers, tier.as_deref(), seconds)
            })?;
        }
        OfCampaign::Delete { name, now } => delete(hold(&name)?, now)?,
    }
    Ok(code::OK)
}

/// Returns the time that the user has given, or else the usual one. Fails if it is longer than the
/// tier allows. Seconds.
fn within(time: Option<Span>, usual: u64, longest: Option<u64>) -> Result<u64, Fail> {
    let seconds = match time {
        Some(Span::Of(seconds)) => seconds,
        Some(Span::Never) => return Err(Fail::usage("a campaign has an end: give a time")),
        None => usual,
    };
    match longest {
        Some(longest) if seconds > longest => Err(Fail::usage(format!(
            "a campaign lasts {} at most on this tier",
            words(longest)
        ))),
        _ => Ok(seconds),
    }
}

fn create(registry: &Registry, tiers: &Tiers, a: &Create) -> Result<(), Fail> {
    let spec = match &a.spec {
        Some(text) => Spec::parse(text).map_err(Fail::usage)?,
        None => Spec::default(),
    };
    let name = match a.tier.as_ref().or(spec.tier.as_ref()) {
        Some(name) => name.clone(),
        None => tiers.only().map_err(Fail::usage)?.to_owned(),
    };
    let tier = tiers.get(&name).map_err(Fail::usage)?;
    let at_end = match &a.at_end {
        Some(text) => AtEnd::parse(text).map_err(Fail::usage)?,
        None => tier.at_end.clone(),
    };
    tiers.check_end(&at_end).map_err(Fail::usage)?;
    let time = a.time.or(spec.time.map(Span::Of));
    let grace = match a.grace {
        Some(Span::Of(seconds)) => seconds,
        Some(Span::Never) => 0,
        None => tier.grace,
    };
    let owner = user_name(rustix::process::getuid().as_raw());
    let begun = Campaign::new(&a.name, &owner);
    let quota = tier.quota(a.size.or(spec.bytes), a.files.or(spec.files));
    let (bytes, files) = quota.map_err(Fail::usage)?;
    let mut c = Campaign {
        bytes,
        files,
        place: tier.place_of(&owner, &a.name),
        tier: name,
        ends: begun.created + within(time, tier.usual, tier.longest)?,
        at_end,
        grace,
        ..begun
    };
    c.note("created");
    if a.if_absent
        && registry
            .list()
            .map_err(Fail::failed)?
            .0
            .iter()
            .any(|c| c.name == a.name)
    {
        let c = registry.get(&a.name).map_err(Fail::failed)?;
        at_its_place(&c)?;
        let area = Area::open(&c.place).map_err(Fail::failed)?;
        return write(format!("{}\n", area.path()).as_bytes());
    }
    let held = registry.add(c).map_err(Fail::failed)?;
    // The record is written first: data without a record would never be removed.
    let made = Area::open(&held.campaign.place).and_then(|area| area.make().map(|()| area.path()));
    let path = match made {
        Ok(path) => path,
        Err(why) => {
            held.forget().map_err(Fail::failed)?;
            return Err(Fail::failed(why));
        }
    };
    let c = &held.campaign;
    if a.json {
        return json(c);
    }
    write(format!("{path}\n").as_bytes())?;
    if tiers.is_no_scratch(&c.tier) {
        note(format!(
            "SCRATCH isn't set, or names no directory, so the data lie at {}",
            c.place
        ));
    }
    if tiers.are_own {
        note(format!(
            "no file names tiers, so it lies in a directory of yours; name others in {} \
             (docs/howto/campaigns.md), and let cron call `forebay campaignd --once`, which does what \
             is due at its end",
            tiers.file.display()
        ));
    }
    print_notice(format!(
        "the campaign '{}' lasts {}; start a pool for it with: forebay campaign up {}",
        c.name,
        words(c.left(c.created)),
        c.name
    ));
    Ok(())
}

fn list(registry: &Registry, as_json: bool) -> Result<(), Fail> {
    let (all, bad) = registry.list().map_err(Fail::failed)?;
    if as_json {
        json(&all)?;
    } else if all.is_empty() && bad.is_empty() {
        print_notice("no campaigns; make one with: forebay campaign create NAME");
    } else {
        let mut rows = vec![
            ["NAME", "STATE", "TIER", "ENDS IN", "USED", "QUOTA", "PLACE"]
                .map(String::from)
                .to_vec(),
        ];
        for c in &all {
            rows.push(vec![
                c.name.clone(),
                state(c).into(),
                c.tier.clone(),
                match c.state {
                    State::Active => words(c.left(now())),
                    _ => "-".into(),
                },
                c.usage.map_or("-".into(), |u| format_size(u.bytes)),
                c.bytes.map_or("-".into(), format_size),
                c.place.clone(),
            ]);
        }
        write(table(&rows, &[0, 1, 2, 3, 6]).as_bytes())?;
    }
    match bad.first() {
        None => Ok(()),
        Some(why) => Err(Fail::failed(why)),
    }
}

fn state(c: &Campaign) -> &'static str {
    match (&c.moving, c.state) {
        (Some(_), _) => "moving",
        (_, State::Expired) => "ended",
        (_, State::Archived) => "archived",
        _ if c.is_over => "over quota",
        _ => "active",
    }
}

fn show(c: &Campaign, as_json: bool) -> Result<(), Fail> {
    if as_json {
        return json(c);
    }
    let at = now();
    let end = match c.state {
        State::Active => format!("in {}; then: {}", words(c.left(at)), c.at_end),
        State::Expired => {
            let left = c.ends.saturating_add(c.grace).saturating_sub(at);
            format!("has come; the data can be restored for {}", words(left))
        }
        State::Archived => "has come; the data are archived".into(),
    };
    let members: Vec<String> = c.members.iter().map(member_in_words).collect();
    let mut rows = vec![
        ("campaign", c.name.clone()),
        ("state", state(c).into()),
        ("owner", c.owner.clone()),
        ("tier", c.tier.clone()),
        ("place", c.place.clone()),
        ("used", service::usage_in_words(c)),
        ("in its pool", used_in_pool(c)),
        ("end", end),
    ];
    rows.retain(|row| !row.1.is_empty());
    if !members.is_empty() {
        rows.push(("shared with", members.join(", ")));
    }
    if let Some(pool) = &c.pool {
        rows.push(("pool", format!("'{}', started on {}", pool.name, pool.host)));
    }
    if let Some(moving) = &c.moving {
        rows.push(("moving to", format!("{} ({})", moving.tier, moving.place)));
    }
    for event in &c.events {
        let what = format!("{} ago: {}", words(at.saturating_sub(event.at)), event.what);
        rows.push(("", what));
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    write(table(&rows, &[0, 1]).as_bytes())
}

/// Describes the usage that the campaign's pool counts against its quota; empty if no such pool
/// runs on this host.
fn used_in_pool(c: &Campaign) -> String {
    let pool = c.pool.as_ref().and_then(|pool| Pool::open(&pool.name).ok());
    let quota = pool.as_ref().and_then(Pool::quota);
    quota.as_ref().map(quota_words).unwrap_or_default()
}

fn member_in_words(member: &Member) -> String {
    let rights = if member.may_write {
        ""
    } else {
        " (reads only)"
    };
    format!("{}{rights}", member.user)
}

/// Fails if the campaign is being moved or has ended: then the campaign's data aren't at the place
/// in its record.
fn at_its_place(c: &Campaign) -> Result<(), Fail> {
    let name = &c.name;
    match (&c.moving, c.state) {
        (Some(moving), _) => Err(Fail::failed(format!(
            "'{name}' is being moved to {}; `forebay campaignd --once` goes on with it",
            moving.tier
        ))),
        (_, State::Active) => Ok(()),
        _ => Err(Fail::failed(format!(
            "'{name}' has ended; get its data back with: forebay campaign restore {name}"
        ))),
    }
}

/// Fails if a pool uses the campaign's data, or if this host can't find out.
fn unused(c: &Campaign) -> Result<(), Fail> {
    let Some(pool) = &c.pool else { return Ok(()) };
    match is_used(pool) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Fail::failed(format!(
            "the pool of '{}' uses the data: forebay campaign down {}",
            c.name, c.name
        ))),
        Err(why) => Err(Fail::failed(why)),
    }
}

pub fn is_used(pool: &PoolOf) -> Result<bool, String> {
    if pool.host == this_host() {
        Ok(Pool::state(&pool.name) != PoolState::Absent)
    } else {
        Err(format!(
            "the pool '{}' was started on {}: remove it there, with: forebay campaign down {}",
            pool.name, pool.host, pool.name
        ))
    }
}

fn extend(held: &mut Held, tiers: &Tiers, time: Span) -> Result<(), Fail> {
    let c = &mut held.campaign;
    at_its_place(c)?;
    let Span::Of(more) = time else {
        return Err(Fail::usage("a campaign has an end: give a time"));
    };
    let tier = tiers.get(&c.tier).map_err(Fail::usage)?;
    let left = c.left(now()) + more;
    within(Some(Span::Of(left)), left, tier.longest)?;
    c.ends = now() + left;
    c.note(format!("extended by {}", words(more)));
    held.save().map_err(Fail::failed)?;
    let c = &held.campaign;
    print_notice(format!("'{}' ends in {}", c.name, words(left)));
    if let Some(pool) = &c.pool {
        print_notice(format!(
            "its pool '{}' ends when it was to end before",
            pool.name
        ));
    }
    Ok(())
}

fn quota(
    held: &mut Held,
    tiers: &Tiers,
    (size, files): (Option<Most>, Option<Most>),
) -> Result<(), Fail> {
    if size.is_none() && files.is_none() {
        return Err(Fail::usage(
            "say which quota: --size SIZE, --files N, or both",
        ));
    }
    let c = &mut held.campaign;
    let tier = tiers.get(&c.tier).map_err(Fail::usage)?;
    let bytes = size.map_or(c.bytes, |most| most.0);
    let files = files.map_or(c.files, |most| most.0);
    (c.bytes, c.files) = tier.quota(bytes, files).map_err(Fail::usage)?;
    let words = service::quota_in_words(c);
    c.note(format!("its quota is {words}"));
    held.save().map_err(Fail::failed)?;
    let c = &held.campaign;
    print_notice(format!("the quota of '{}' is {words}", c.name));
    let Some(pool) = &c.pool else { return Ok(()) };
    if pool.host != this_host() && Pool::state(&pool.name) == PoolState::Absent {
        print_notice(format!(
            "its pool on {} has the old one; call this there, too",
            pool.host
        ));
        return Ok(());
    }
    if Pool::state(&pool.name) == PoolState::Absent {
        return Ok(());
    }
    let (bytes, files) = (c.bytes, c.files);
    let told = Pool::open(&pool.name)?.ask_origin(&Request::Quota { bytes, files });
    told.map_err(|refused| {
        Fail::failed(format!(
            "the quota is noted, but the pool '{}' doesn't know: {}; call this again",
            pool.name, refused.error
        ))
    })?;
    Ok(())
}

fn share(held: &mut Held, users: &[String]) -> Result<(), Fail> {
    at_its_place(&held.campaign)?;
    let members: Result<Vec<Member>, Fail> = users
        .iter()
        .map(|text| {
            let (user, may_write) = match text.strip_suffix(":ro") {
                Some(user) => (user, false),
                None => (text.as_str(), true),
            };
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
            match user.len() {
                1..=MAX_USER_NAME_BYTES if user.chars().all(is_good) && !user.starts_with('-') => {
                    Ok(Member {
                        user: user.to_owned(),
                        may_write,
                    })
                }
                _ => Err(Fail::usage(format!(
                    "'{text}' is no user: write NAME or NAME:ro"
                ))),
            }
        })
        .collect();
    let members = members?;
    let area = Area::open(&held.campaign.place).map_err(Fail::failed)?;
    area.share_with(&members).map_err(Fail::failed)?;
    let names: Vec<String> = members.iter().map(member_in_words).collect();
    held.campaign.note(if names.is_empty() {
        "shared with nobody".into()
    } else {
        format!("shared with {}", names.join(", "))
    });
    held.campaign.members = members;
    held.save().map_err(Fail::failed)
}

/// Starts a pool that has the campaign's data as its origin, and that ends with the campaign.
fn start(mut held: Held, pool_name: Option<String>, mut a: Up) -> Result<u8, Fail> {
    let c = &held.campaign;
    at_its_place(c)?;
    if a.media.origin.origin.is_some() {
        return Err(Fail::usage("the origin of a campaign's pool is its data"));
    }
    if c.place.starts_with(POOL) {
        return Err(Fail::usage(format!(
            "the data of '{}' are in a pool already: {}; programs use them there",
            c.name, c.place
        )));
    }
    if a.nodes.mpi {
        return Err(Fail::usage(
            "with --mpi, start the pool itself: forebay up --mpi --origin PATH --pool NAME",
        ));
    }
    let left = c.left(now());
    if left == 0 {
        let name = &c.name;
        return Err(Fail::failed(format!(
            "'{name}' has ended: forebay campaign extend {name} 1d"
        )));
    }
    unused(c)?;
    // A bucket has no path of its own: its data appear below the pool's prefix, in a directory with
    // the campaign's name.
    let at = match Address::parse(c.place.as_bytes()) {
        Some(_) => format!("=/{}", c.name),
        None => String::new(),
    };
    a.media.origin.origin = Some(c.place.clone() + &at);
    a.media.ttl = Some(Span::Of(match a.media.ttl {
        Some(Span::Of(seconds)) => seconds.min(left),
        _ => left,
    }));
    if needs_count(c) {
        service::measure(&mut held).map_err(Fail::failed)?;
    }
    let c = &held.campaign;
    if let Some(excess) = c.excess() {
        print_notice(format!("warning: '{}' exceeds its quota: {excess}", c.name));
    }
    site::complete(&mut a.media, &mut a.nodes)?;
    let used = c.usage.unwrap_or_default();
    a.media.origin.quota = Some(Quota {
        bytes: c.bytes,
        files: c.files,
        used_bytes: used.bytes,
        used_files: used.files,
    });
    let name = pool_name.unwrap_or_else(|| c.name.clone());
    if Pool::state(&name) != PoolState::Absent {
        return Err(Fail::failed(format!(
            "there is a pool '{name}' already: choose another name with --as"
        )));
    }
    // The record is written before the pool starts: if the campaign ends meanwhile, it waits for
    // its pool.
    held.campaign.pool = Some(PoolOf {
        name: name.clone(),
        host: this_host(),
        since: now(),
    });
    held.save().map_err(Fail::failed)?;
    let result = up::up(&name, &a);
    if result.is_err() && Pool::state(&name) == PoolState::Absent {
        held.campaign.pool = None;
        held.save().map_err(Fail::failed)?;
    }
    result
}

/// Whether a campaign with a quota needs a new count of its usage before a pool starts.
fn needs_count(c: &Campaign) -> bool {
    let is_recent = c
        .usage
        .is_some_and(|u| now() < u.at.saturating_add(COUNTED));
    (c.bytes.is_some() || c.files.is_some()) && !is_recent
}

fn stop(mut held: Held, a: &Down) -> Result<u8, Fail> {
    let Some(pool) = held.campaign.pool.clone() else {
        let name = &held.campaign.name;
        return Err(Fail::failed(format!("the campaign '{name}' has no pool")));
    };
    // With --force, the user knows that the pool doesn't exist any more: for example, because its
    // host was switched off.
    if pool.host != this_host() && Pool::state(&pool.name) == PoolState::Absent && !a.force {
        let why = is_used(&pool).err().unwrap_or_default();
        let more = "or, if it is gone, here with --force";
        return Err(Fail::failed(format!("{why}; {more}")));
    }
    let result = match Pool::state(&pool.name) {
        // The pool has ended without `forebay campaign down`.
        PoolState::Absent => code::OK,
        _ => down::down(&pool.name, a)?,
    };
    held.campaign.pool = None;
    service::measure(&mut held).map_err(Fail::failed)?;
    held.save().map_err(Fail::failed)?;
    Ok(result)
}

/// Moves the data by `work`, and prints their new place.
fn moved(
    held: &mut Held,
    work: impl FnOnce(&mut Held) -> forebay_campaign::Result<()>,
) -> Result<(), Fail> {
    let result = work(held);
    let c = &held.campaign;
    if let Err(why) = result {
        let later = if c.moving.is_some() || !c.leftovers.is_empty() {
            "; the move has begun, and `forebay campaignd` goes on with it"
        } else {
            ""
        };
        return Err(Fail::failed(format!("{why}{later}")));
    }
    print_notice(format!("'{}' is at {}", c.name, c.place));
    Ok(())
}

fn delete(mut held: Held, is_now: bool) -> Result<(), Fail> {
    unused(&held.campaign)?;
    let name = held.campaign.name.clone();
    if is_now {
        moves::remove(held).map_err(Fail::failed)?;
        print_notice(format!("'{name}' and its data are removed"));
        return Ok(());
    }
    at_its_place(&held.campaign)?;
    held.campaign.ends = now();
    moves::expire(&mut held).map_err(Fail::failed)?;
    let grace = words(held.campaign.grace);
    print_notice(format!(
        "'{name}' has ended; for {grace}, its data come back with: forebay campaign restore {name}"
    ));
    Ok(())
}
