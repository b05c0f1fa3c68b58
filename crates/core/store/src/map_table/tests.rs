use super::*;
use crate::control_region::{Control, Layout, Limits, ProcessArea};
use forebay_media::Region;
use std::collections::BTreeMap;

/// Makes a control region for processes with up to 70,000 mappings, in a file that is removed at
/// once.
fn area(name: &str) -> (Control, Region) {
    let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
    let limits = Limits::of(1, 70_000);
    let layout = Layout::of(limits);
    let region = Region::create(&path, layout.file_len(), false).unwrap();
    Control::format(&region, 4, limits);
    let file = rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    let control = Control::map(&file.unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    (control, region)
}

fn table<'a>(control: &Control, region: &'a Region) -> MapTable<'a> {
    // SAFETY: a ProcessArea is made of atomics; `at` checks bounds and alignment.
    let area: &ProcessArea = unsafe { region.at(control.layout().areas_at) };
    let most = control.layout().limits.maps as usize;
    control.reserve_maps(0, area, most).unwrap();
    control.maps_of(area)
}

/// Returns the average depth of the tree's nodes. The root has depth 1.
fn mean_depth(table: &MapTable<'_>) -> f64 {
    let mut left = vec![(table.heads.root.load(Relaxed), 1u64)];
    let (mut all, mut count) = (0, 0);
    while let Some((link, depth)) = left.pop() {
        if link != 0 {
            (all, count) = (all + depth, count + 1);
            left.push((table.at(link).lower.load(Relaxed), depth + 1));
            left.push((table.at(link).higher.load(Relaxed), depth + 1));
        }
    }
    all as f64 / f64::from(count.max(1))
}

#[test]
fn the_tree_finds_what_an_ordered_map_finds() {
    let (control, region) = area("map-tree");
    let table = table(&control, &region);
    let (end, mut model, mut seed) = (AtomicU32::new(0), BTreeMap::new(), 1u64);
    for turn in 0..60_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let address = (seed >> 40) % 5000 * 16;
        match model.remove(&address) {
            Some(place) => {
                table.remove(place);
                place.len.store(0, Relaxed);
                table.give_back(place);
            }
            None => {
                let place = table.take(&end).unwrap();
                place.address.store(address, Relaxed);
                table.insert(place);
                place.len.store(8, Relaxed);
                model.insert(address, place);
            }
        }
        let at = (seed >> 20) % 80_000;
        let expected = Some(()).and_then(|()| {
            let below = model.range(..=at).next_back().map(|(_, p)| *p);
            let below = below.filter(|p| p.address.load(Relaxed) + 8 > at);
            below.or_else(|| model.range(at + 1..).next().map(|(_, p)| *p))
        });
        let found = table.first_above(at);
        assert_eq!(
            found.map(std::ptr::from_ref),
            expected.map(std::ptr::from_ref),
            "turn {turn}"
        );
    }
    assert!(end.load(Relaxed) <= 5000, "places are used again");
}

/// The cost of a mapping hardly depends on the number of mappings: with 100 times as many, the tree
/// is at most 2.5 times as deep, and a file's chain is short.
#[test]
fn with_many_mappings_each_is_as_near_as_with_few() {
    let (control, region) = area("map-many");
    let table = table(&control, &region);
    let (end, mut few) = (AtomicU32::new(0), 0.0);
    for n in 0..60_000u32 {
        let place = table.take(&end).unwrap();
        // In the order of addresses: the worst for a tree that isn't balanced.
        place.address.store(u64::from(n) << 12, Relaxed);
        place.chain.store(chain_of(n, false), Relaxed);
        table.insert(place);
        place.len.store(4096, Relaxed);
        table.chain(place);
        if n == 600 {
            few = mean_depth(&table);
        }
    }
    let many = mean_depth(&table);
    assert!(many < 2.5 * few && many < 40.0, "{few} and {many} steps");
    let mut steps = 0;
    table.each_of_file(31_000, 60_000, |_, _| steps += 1);
    assert!((1..100).contains(&steps), "{steps} places of one file");
    assert!(table.take_marks().is_empty());
    table.mark(7, 1);
    table.mark(59_999, 2);
    table.mark(7, 3);
    let marks = table.take_marks();
    let marks: Vec<u64> = marks.into_iter().map(|(_, cut)| cut).collect();
    assert_eq!(marks, [3, 2]);
    for place in table.up_to(60_000) {
        table.remove(place);
        table.unchain(place);
        table.give_back(place);
    }
    assert_eq!(table.first_above(0).map(|p| p.len.load(Relaxed)), None);
    assert_eq!(table.of_file(31_000, false).count(), 0);
}

#[test]
fn a_chain_left_in_the_middle_of_a_change_is_not_relied_on() {
    let (control, region) = area("map-odd");
    let table = table(&control, &region);
    let end = AtomicU32::new(0);
    for _ in 0..10 {
        let place = table.take(&end).unwrap();
        place.chain.store(chain_of(5, false), Relaxed);
        table.chain(place);
    }
    // The state after the owner of the table has died while it changed a chain.
    table.heads.version.fetch_add(1, Relaxed);
    table.chains.0[chain_of(5, false) as usize].store(0, Relaxed);
    let mut seen = std::collections::HashSet::new();
    table.each_of_file(5, 10, |link, _| _ = seen.insert(link));
    assert_eq!(seen.len(), 10, "all places are looked at");
    table.clear();
    assert_eq!(table.heads.version.load(Relaxed) % 2, 0);
}

#[test]
fn tables_are_sized_by_the_machine() {
    assert_eq!(Limits::of(1, 65_530).open, 1 << 17);
    assert_eq!(Limits::of(128, 65_530).open, 1 << 20, "a million");
    assert_eq!(Limits::of(10_000, 65_530).open, 1 << 20);
    assert!(Limits::of(2, 65_530).maps > 65_530);
    assert!(Limits::of(2, 1 << 20).maps > 1 << 20);
}
