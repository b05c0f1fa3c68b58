//! `forebay trace`: switches tracepoints, and shows their records.

use crate::fail::{Fail, code};
use crate::output::{Stdout, count, json, note, print_notice, write};
use crate::peers::Peers;
use crate::slow::{self, SlowOperation, request};
use crate::tables::table;
use crate::trace_args::{self as args, Trace};
use forebay_client::{Pool, PoolError, places};
use forebay_media::format_size;
use forebay_report::align::align;
use forebay_report::collect::{Collected, Collector, on, switch};
use forebay_report::node::Node;
use forebay_report::profiles::{Profile, SHIPPED, chosen, fits};
use forebay_report::spans::{costs, is_of_span, spans};
use forebay_report::stream::{Event, Recording, Writer};
use forebay_store::ObjectId;
use forebay_trace::points::{Kind, POINTS};
use forebay_trace::shared::{RING_EVENTS_RANGE, SLOW};
use serde_json::{Value, json as value};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

/// Bounds of the pause between two reads of the rings while recording.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn trace(pool: &str, command: &args::TraceCommand) -> Result<u8, Fail> {
    match &command.what {
        Trace::List(a) if a.profiles => profiles(a.json),
        Trace::List(a) => list(a),
        Trace::On(a) => switch_on(pool, a),
        Trace::Off(a) => switch_off(pool, a),
        Trace::Status(a) => status(pool, a.json),
        Trace::Dump(a) => dump(pool, a),
        Trace::Record(a) => record(pool, a),
        Trace::Costs(a) => show_costs(pool, a),
        Trace::Show(a) => show_request(pool, a),
        Trace::Slow(a) => show_slow(pool, a),
        Trace::Clear => clear(pool),
    }
}

/// Opens the nodes of the pool on this host.
pub fn nodes(pool: &str) -> Result<Vec<Node>, Fail> {
    let places = places(pool);
    if places.is_empty() {
        return Err(PoolError::Absent(pool.to_owned()).into());
    }
    let open = |place| {
        Node::open(place).map_err(|e| {
            let why = match e {
                rustix::io::Errno::INVAL => "it was made by another version of Forebay".to_owned(),
                e => e.to_string(),
            };
            Fail::failed(format!("the pool '{pool}' can't be looked at: {why}"))
        })
    };
    places.iter().map(open).collect()
}

fn list(a: &args::ListPoints) -> Result<u8, Fail> {
    let wanted = |name: &str| a.patterns.is_empty() || a.patterns.iter().any(|p| fits(p, name));
    let points = || POINTS.iter().enumerate().filter(|(_, p)| wanted(p.name));
    if a.json {
        let points: Vec<Value> = points()
            .map(|(id, p)| {
                let fields: Vec<Value> = p.fields.iter()
                    .map(|(name, kind)| value!({ "name": name, "kind": format!("{kind:?}").to_lowercase() }))
                    .collect();
                value!({ "name": p.name, "id": id, "crate": p.place, "says": p.template, "fields": fields })
            })
            .collect();
        json(&points)?;
        return Ok(code::OK);
    }
    let mut rows = vec![["ID", "NAME", "CRATE", "SAYS"].map(String::from).to_vec()];
    rows.extend(points().map(|(id, p)| {
        vec![
            id.to_string(),
            p.name.into(),
            p.place.into(),
            p.template.into(),
        ]
    }));
    if rows.len() == 1 {
        return Err(Fail::failed(
            "no tracepoint fits; forebay trace list shows all",
        ));
    }
    write(table(&rows, &[1, 2, 3]).as_bytes())?;
    Ok(code::OK)
}

fn profiles(as_json: bool) -> Result<u8, Fail> {
    let read = |(name, text): &(&str, &str)| {
        let profile = Profile::parse(text).map_err(Fail::failed)?;
        let points = chosen(&[(*name).to_owned()]).map_err(Fail::failed)?;
        Ok::<_, Fail>(((*name).to_owned(), profile, points.len()))
    };
    let all: Vec<_> = SHIPPED.iter().map(read).collect::<Result<_, _>>()?;
    if as_json {
        let all: Vec<Value> = all.iter()
            .map(|(name, p, _)| value!({ "name": name, "description": p.description, "points": p.points }))
            .collect();
        json(&all)?;
        return Ok(code::OK);
    }
    let mut rows = vec![["PROFILE", "POINTS", "FOR"].map(String::from).to_vec()];
    rows.extend(
        all.into_iter()
            .map(|(name, p, n)| vec![name, n.to_string(), p.description]),
    );
    write(table(&rows, &[0, 2]).as_bytes())?;
    Ok(code::OK)
}

/// Runs `forebay` with these arguments on all other hosts of the pool, unless `here`.
fn on_other_hosts(pool: &str, here: bool, arguments: &[&str]) -> Result<(), Fail> {
    match if here { None } else { Peers::look(pool)? } {
        Some(others) => others.each(&[arguments, &["--here", "--pool", pool]].concat()),
        None => Ok(()),
    }
}

fn switch_on(pool: &str, a: &args::Switch) -> Result<u8, Fail> {
    let points = chosen(&a.names).map_err(Fail::usage)?;
    let (least, most) = RING_EVENTS_RANGE;
    if let Some(keep) = a.keep
        && !(keep.is_power_of_two() && (least..=most).contains(&keep))
    {
        return Err(Fail::usage(format!(
            "--keep {keep}: it must be a power of two from {least} to {most}"
        )));
    }
    for node in nodes(pool)? {
        if let Some(keep) = a.keep {
            node.shared().head.ring_events.store(keep, Release);
        }
        switch(&node, &points, true);
    }
    let keep = a.keep.map(|keep| format!("--keep={keep}"));
    let mut words = vec!["trace", "on"];
    words.extend(points.iter().map(|&i| POINTS[i].name));
    words.extend(keep.as_deref());
    on_other_hosts(pool, a.here, &words)?;
    Ok(code::OK)
}

fn switch_off(pool: &str, a: &args::Off) -> Result<u8, Fail> {
    let points = if a.names.is_empty() {
        (0..POINTS.len()).collect()
    } else {
        chosen(&a.names).map_err(Fail::usage)?
    };
    for node in nodes(pool)? {
        switch(&node, &points, false);
    }
    let mut words = vec!["trace", "off"];
    if !a.names.is_empty() {
        words.extend(points.iter().map(|&i| POINTS[i].name));
    }
    on_other_hosts(pool, a.here, &words)?;
    Ok(code::OK)
}

fn status(pool: &str, as_json: bool) -> Result<u8, Fail> {
    let mut reports = Vec::new();
    let mut text = String::new();
    for node in nodes(pool)? {
        let head = &node.shared().head;
        let names: Vec<&str> = on(&node).into_iter().map(|i| POINTS[i].name).collect();
        let rings = node.ring_files().map_or(0, |files| files.len());
        let (bytes, limit) = (head.rings.load(Relaxed), head.rings_limit.load(Relaxed));
        let refused = head.refused.load(Relaxed);
        let reader = Some(head.reader.load(Relaxed)).filter(|&pid| pid != 0);
        reports.push(value!({
            "node": node.number.0, "on": names, "rings": rings, "ring_bytes": bytes,
            "ring_bytes_limit": limit, "events_per_ring": head.ring_events.load(Relaxed),
            "refused": refused, "reader": reader,
        }));
        let _ = writeln!(
            text,
            "node {}: {} of {} tracepoints on; events of {}, {} of {}",
            node.number.0,
            names.len(),
            POINTS.len(),
            count(rings as u64, "process"),
            format_size(bytes),
            format_size(limit)
        );
        for name in names {
            let _ = writeln!(text, "  {name}");
        }
        if refused > 0 {
            let _ = writeln!(
                text,
                "  {} had no room for events: forebay trace clear makes some",
                count(refused, "process")
            );
        }
        if let Some(pid) = reader {
            let _ = writeln!(text, "  process {pid} records all events");
        }
    }
    if as_json {
        json(&reports)?
    } else {
        write(text.as_bytes())?
    }
    Ok(code::OK)
}

/// Reads the events in the rings of this host's nodes.
fn of_rings(pool: &str) -> Result<Recording, Fail> {
    let mut recording = Recording::default();
    for node in nodes(pool)? {
        let (number, scale) = (node.number.0 as u16, node.scale());
        let found = node
            .rings()
            .map_err(|e| Fail::failed(format!("can't read the events of node {number}: {e}")))?;
        for found in found {
            let ring = match found.ring {
                Ok(ring) => ring,
                Err(why) => {
                    print_notice(format!("{}: {why}; it is left out", found.path.display()));
                    continue;
                }
            };
            recording
                .programs
                .insert((number, ring.process), ring.program);
            if ring.lost > 0 {
                *recording.lost.entry((number, ring.process)).or_default() += ring.lost;
            }
            recording
                .events
                .extend(ring.records.into_iter().map(|mut record| {
                    record.time = scale.time(record.time);
                    Event {
                        node: number,
                        record,
                    }
                }));
        }
    }
    recording.sort();
    Ok(recording)
}

/// Returns the events of all nodes, or of the file `from`, with aligned clocks, and remarks on
/// them.
pub fn gather(pool: &str, from: Option<&Path>) -> Result<(Recording, Vec<String>), Fail> {
    let mut notes = Vec::new();
    if let Some(path) = from {
        let failed = |why: String| Fail::failed(format!("{}: {why}", path.display()));
        let file = File::open(path).map_err(|e| failed(e.to_string()))?;
        let mut recording = Recording::read(file).map_err(failed)?;
        if let Some(why) = &recording.cut {
            notes.push(format!(
                "{}: {why}; what came before is shown",
                path.display()
            ));
        }
        aligned(&mut recording, |_, _| false, &mut notes);
        return Ok((recording, notes));
    }
    let mut recording = of_rings(pool)?;
    let here: BTreeSet<u16> = places(pool)
        .iter()
        .map(|p| p.node.unwrap_or(0) as u16)
        .collect();
    if let Some(others) = Peers::look(pool)? {
        for (host, output) in others.outputs(&["trace", "dump", "--stream", "--pool", pool]) {
            let read = output.and_then(|bytes| {
                Recording::read(&bytes[..]).map_err(|why| Fail::failed(format!("{host}: {why}")))
            });
            match read {
                Ok(theirs) => {
                    recording.events.extend(theirs.events);
                    recording.programs.extend(theirs.programs);
                    recording.lost.extend(theirs.lost);
                }
                Err(e) => notes.push(format!("{}; its events are left out", e.message)),
            }
        }
    }
    aligned(
        &mut recording,
        |a, b| here.contains(&a) && here.contains(&b),
        &mut notes,
    );
    Ok((recording, notes))
}

fn aligned(recording: &mut Recording, same: impl Fn(u16, u16) -> bool, notes: &mut Vec<String>) {
    for (node, alignment) in align(recording, same) {
        match alignment.error {
            Some(0) => {}
            Some(error) => notes.push(format!(
                "the clock of node {node} was moved by {} µs; it may be wrong by {} µs",
                alignment.offset as f64 / 1e3,
                error as f64 / 1e3
            )),
            None => notes.push(format!(
                "the clock of node {node} is taken as it is: nothing says how it differs"
            )),
        }
    }
    let lost: u64 = recording.lost.values().sum();
    if lost > 0 {
        let were = if lost == 1 { "was" } else { "were" };
        notes.push(format!(
            "{} {were} overwritten",
            count(lost, "earlier event")
        ));
    }
    if recording.unknown > 0 {
        notes.push(format!(
            "left out: {} of tracepoints that this version doesn't have",
            count(recording.unknown, "event")
        ));
    }
}

fn request_of(text: &str) -> Result<u64, Fail> {
    let wrong = || Fail::usage(format!("'{text}' is no request: NODE.PROCESS.NUMBER"));
    let parts: Vec<u64> = text
        .split('.')
        .map(|p| p.parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    match parts[..] {
        [node, process, number] if node < 1 << 12 && process < 1 << 22 && number < 1 << 30 => {
            Ok(node << 52 | process << 30 | number)
        }
        _ => Err(wrong()),
    }
}

/// Formats a time of day in UTC as `HH:MM:SS.micros`. `nanoseconds` is since 1970.
pub fn clock(nanoseconds: u64) -> String {
    let (seconds, micros) = (
        nanoseconds / 1_000_000_000 % 86_400,
        nanoseconds / 1000 % 1_000_000,
    );
    format!(
        "{:02}:{:02}:{:02}.{micros:06}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Describes an event in a sentence. Replaces control characters, which could confuse a terminal.
fn sentence(record: &forebay_trace::read::Record) -> String {
    let words = |kind, value| {
        let declared = forebay_cluster::peers::requests::find(u16::try_from(value).ok()?);
        (kind == Kind::Request).then(|| declared.map(|d| d.name.to_owned()))?
    };
    let sentence = record.sentence_by(words);
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    sentence.chars().map(shown).collect()
}

fn line(event: &Event, recording: &Recording) -> String {
    let r = &event.record;
    format!(
        "{} {}.{} {} {} {} {}",
        clock(r.time),
        event.node,
        r.thread,
        program(event, recording),
        request(r.request),
        r.name(),
        sentence(r)
    )
}

fn program<'a>(event: &Event, recording: &'a Recording) -> &'a str {
    let key = (event.node, event.record.process);
    recording.programs.get(&key).map_or("?", String::as_str)
}

fn event_json(event: &Event, recording: &Recording) -> Value {
    let r = &event.record;
    let mut fields = serde_json::Map::new();
    for (name, kind, number) in r.named_fields() {
        let shown = match kind {
            Kind::Object | Kind::Bits => value!(format!("{number:x}")),
            Kind::Number => value!(number as i64),
            _ => value!(number),
        };
        fields.insert(name.into(), shown);
    }
    if let Some(text) = &r.text {
        fields.insert("text".into(), value!(String::from_utf8_lossy(text)));
    }
    value!({
        "time": r.time, "node": event.node, "process": r.process, "thread": r.thread,
        "program": recording.programs.get(&(event.node, r.process)),
        "request": request(r.request), "point": r.name(), "fields": fields,
    })
}

fn dump(pool: &str, a: &args::Dump) -> Result<u8, Fail> {
    if a.stream {
        return dump_stream(pool);
    }
    let (recording, notes) = gather(pool, a.from.from.as_deref())?;
    let mut out = BufWriter::new(Stdout::lock());
    let printed = (|| {
        if a.perfetto {
            perfetto(&recording, &mut out)?;
        } else {
            for event in &recording.events {
                if a.from.json {
                    writeln!(out, "{}", event_json(event, &recording))?
                } else {
                    writeln!(out, "{}", line(event, &recording))?
                }
            }
        }
        out.flush()
    })();
    printed.map_err(|e: std::io::Error| {
        Fail::failed(format!("can't write to the standard output: {e}"))
    })?;
    notes.iter().for_each(print_notice);
    if recording.events.is_empty() {
        print_notice("no events; forebay trace on switches tracepoints on");
    }
    Ok(code::OK)
}

fn dump_stream(pool: &str) -> Result<u8, Fail> {
    let recording = of_rings(pool)?;
    let written = (|| {
        let mut writer = Writer::new(BufWriter::new(Stdout::lock()))?;
        for ((node, process), program) in &recording.programs {
            writer.process(*node, *process, program)?;
        }
        for event in &recording.events {
            writer.event(event.node, &event.record, event.record.time)?;
        }
        for ((node, process), lost) in &recording.lost {
            writer.lost(*node, *process, *lost)?;
        }
        writer.finish()?.flush()
    })();
    written.map_err(|e| Fail::failed(format!("can't write the events: {e}")))?;
    Ok(code::OK)
}

/// Writes the recording in the Trace Event format: spans as complete events, others as instants.
/// Times are in microseconds.
fn perfetto(recording: &Recording, out: &mut impl Write) -> std::io::Result<()> {
    let mut first = true;
    let mut put = |event: Value, out: &mut dyn Write| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        writeln!(out, "{comma}{event}")
    };
    // Combines process ids with the node's number: several nodes may have the same ones.
    let pid = |node: u16, process: u32| u64::from(node) << 32 | u64::from(process);
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for ((node, process), program) in &recording.programs {
        let name = format!("node {node}: {program} ({process})");
        put(
            value!({ "ph": "M", "name": "process_name", "pid": pid(*node, *process), "args": { "name": name } }),
            out,
        )?;
    }
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let arguments = |event: &Event| {
        let json = event_json(event, recording);
        let mut fields = json["fields"].clone();
        fields["request"] = json["request"].clone();
        fields
    };
    for span in spans(recording).0 {
        let r = &span.enter.record;
        put(
            value!({
                "ph": "X", "name": span.name(), "cat": POINTS[r.point as usize].place,
                "ts": micros(r.time), "dur": micros(span.length()),
                "pid": pid(span.enter.node, r.process), "tid": r.thread, "args": arguments(&span.enter),
            }),
            out,
        )?;
    }
    for event in recording
        .events
        .iter()
        .filter(|e| !is_of_span(e.record.point))
    {
        let r = &event.record;
        put(
            value!({
                "ph": "i", "s": "t", "name": r.name(), "cat": POINTS[r.point as usize].place,
                "ts": micros(r.time), "pid": pid(event.node, r.process), "tid": r.thread, "args": arguments(event),
            }),
            out,
        )?;
    }
    writeln!(out, "]}}")
}

/// Formats a duration for people. `nanoseconds` may have a fraction.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 99_950.0 => format!("{:.1} µs", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} µs", n / 1e3),
        n if n < 99_950_000.0 => format!("{:.1} ms", n / 1e6),
        n if n < 999_500_000.0 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.1} s", n / 1e9),
    }
}

fn show_costs(pool: &str, a: &args::From) -> Result<u8, Fail> {
    let (recording, notes) = gather(pool, a.from.as_deref())?;
    let (spans, unfinished) = spans(&recording);
    let costs = costs(&spans);
    if a.json {
        let rows: Vec<Value> = costs.iter()
            .map(|(path, c)| value!({
                "path": path, "count": c.count, "nanoseconds": c.total, "own_nanoseconds": c.own,
                "longest_nanoseconds": c.longest,
            }))
            .collect();
        json(&value!({ "costs": rows, "unfinished": unfinished.len(), "notes": notes }))?;
        return Ok(code::OK);
    }
    if costs.is_empty() {
        notes.iter().for_each(print_notice);
        return Err(Fail::failed(
            "no pairs of events; forebay trace on create-analysis switches some on",
        ));
    }
    let mut rows = vec![
        ["WHAT", "COUNT", "EACH", "OWN", "ALL", "SHARE", "LONGEST"]
            .map(String::from)
            .to_vec(),
    ];
    let whole: u64 = costs
        .iter()
        .filter(|(path, _)| path.len() == 1)
        .map(|(_, c)| c.total)
        .sum();
    for (path, c) in &costs {
        let name = path.last().copied().unwrap_or("");
        rows.push(vec![
            format!("{}{name}", "  ".repeat(path.len() - 1)),
            c.count.to_string(),
            time(c.total as f64 / c.count as f64),
            time(c.own as f64 / c.count as f64),
            time(c.total as f64),
            format!("{:.1}%", c.own as f64 * 100.0 / whole.max(1) as f64),
            time(c.longest as f64),
        ]);
    }
    write(table(&rows, &[0]).as_bytes())?;
    notes.iter().for_each(print_notice);
    if !unfinished.is_empty() {
        print_notice(format!(
            "{} began and didn't end, the last one: {}",
            unfinished.len(),
            line(&unfinished[unfinished.len() - 1], &recording)
        ));
    }
    Ok(code::OK)
}

fn show_request(pool: &str, a: &args::ShowRequest) -> Result<u8, Fail> {
    let id = request_of(&a.request)?;
    let (mut recording, notes) = gather(pool, a.from.from.as_deref())?;
    recording.events.retain(|e| e.record.request == id);
    let Some(first) = recording.events.first().map(|e| e.record.time) else {
        return Err(Fail::failed(format!(
            "there are no events of request {}: tracepoints must have been on (forebay trace on), \
                and its events not overwritten since",
            a.request
        )));
    };
    if a.from.json {
        let events: Vec<Value> = recording
            .events
            .iter()
            .map(|e| event_json(e, &recording))
            .collect();
        json(&value!({ "request": a.request, "events": events, "notes": notes }))?;
        return Ok(code::OK);
    }
    let mut text = String::new();
    let mut depth = std::collections::HashMap::<(u16, u32), usize>::new();
    for event in &recording.events {
        let r = &event.record;
        let depth = depth.entry((event.node, r.thread)).or_default();
        if r.name().ends_with("_EXIT") {
            *depth = depth.saturating_sub(1);
        }
        let program = program(event, &recording);
        let _ = writeln!(
            text,
            "{:>12}  node {} {program:<15} {}{} {}",
            format!("+{:.1} µs", (r.time - first) as f64 / 1e3),
            event.node,
            "  ".repeat(*depth),
            r.name(),
            sentence(r),
        );
        if r.name().ends_with("_ENTER") {
            *depth += 1;
        }
    }
    write(text.as_bytes())?;
    notes.iter().for_each(print_notice);
    Ok(code::OK)
}

fn show_slow(pool: &str, a: &args::Slow) -> Result<u8, Fail> {
    if let Some(bound) = a.bound {
        if !(0.0..=3.6e6).contains(&bound) {
            return Err(Fail::usage(format!(
                "--bound {bound}: from 0 to 3600000 milliseconds"
            )));
        }
        for node in nodes(pool)? {
            let ticks = node.scale().ticks((bound * 1e6) as u64);
            node.shared().head.slow_bound.store(ticks, Release);
        }
        on_other_hosts(
            pool,
            a.here,
            &["trace", "slow", &format!("--bound={bound}")],
        )?;
        return Ok(code::OK);
    }
    let nodes = nodes(pool)?;
    let mut found: Vec<SlowOperation> = nodes.iter().flat_map(slow::of_node).collect();
    if !a.here
        && let Some(others) = Peers::look(pool)?
    {
        for (host, output) in others.outputs(&["trace", "slow", "--json", "--here", "--pool", pool])
        {
            match output.map(|bytes| serde_json::from_slice::<Vec<SlowOperation>>(&bytes)) {
                Ok(Ok(theirs)) => found.extend(theirs),
                Ok(Err(e)) => print_notice(format!("{host}: its answer can't be read: {e}")),
                Err(e) => print_notice(e.message),
            }
        }
    }
    found.sort_by_key(|s| std::cmp::Reverse(s.nanoseconds));
    if a.json {
        json(&found)?;
        return Ok(code::OK);
    }
    if found.is_empty() {
        print_notice("no slow operations");
        return Ok(code::OK);
    }
    let mut rows = vec![
        [
            "BEGAN",
            "TOOK",
            "OPERATION",
            "IN REQUESTS",
            "PROCESS",
            "REQUEST",
            "",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for s in found.iter().take(SLOW) {
        rows.push(vec![
            clock(s.begin),
            time(s.nanoseconds as f64),
            s.operation.clone(),
            match s.requests_to_other_nodes {
                0 => "-".into(),
                asked => format!("{} in {asked}", time(s.nanoseconds_in_requests as f64)),
            },
            format!("{}.{}", s.node, s.process),
            s.request.clone(),
            match s.errno {
                0 => String::new(),
                e => rustix::io::Errno::from_raw_os_error(e).to_string(),
            },
        ]);
    }
    write(table(&rows, &[0, 2, 4, 5, 6]).as_bytes())?;
    Ok(code::OK)
}

fn clear(pool: &str) -> Result<u8, Fail> {
    for node in nodes(pool)? {
        let failed = |e| {
            Fail::failed(format!(
                "can't clear the events of node {}: {e}",
                node.number.0
            ))
        };
        for path in node.ring_files().map_err(failed)? {
            node.clear_ring(&path).map_err(failed)?;
        }
    }
    Ok(code::OK)
}

/// Whether a signal has asked to end the recording.
static ENDS: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    ENDS.store(true, Release);
}

/// Makes signals end recordings and watching in order, instead of ending the process.
pub fn end_by_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}

/// Whether a signal has asked to end the recording or watching.
pub fn ended_by_signal() -> bool {
    ENDS.load(Acquire)
}

fn record(pool: &str, a: &args::Record) -> Result<u8, Fail> {
    let points = chosen(&a.on).map_err(Fail::usage)?;
    let nodes = nodes(pool)?;
    let failed = |e: std::io::Error| Fail::failed(format!("{}: {e}", a.to.display()));
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(&a.to)
        .map_err(failed)?;
    end_by_signals();
    let mut collector =
        Collector::new(nodes, BufWriter::new(file), a.wait, &points).map_err(failed)?;
    let until = a
        .length
        .map(|s| Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
    let mut pause = FIRST_POLL_INTERVAL;
    let there = |pool: &str| !places(pool).is_empty();
    while !ended_by_signal() && until.is_none_or(|until| Instant::now() < until) && there(pool) {
        pause = match collector.turn() {
            0 => (pause * 2).min(MAX_POLL_INTERVAL),
            _ => FIRST_POLL_INTERVAL,
        };
        if collector.failed.is_some() {
            break;
        }
        std::thread::sleep(pause);
    }
    let collected = collector
        .finish(paths_of_directories(pool))
        .map_err(failed)?;
    let Collected {
        events,
        lost,
        refused,
        ..
    } = collected;
    let in_all = count(events, "event");
    note(format!("{in_all} in {}", a.to.display()));
    if refused > 0 {
        print_notice(format!(
            "{} had no room for events: too many at a time",
            count(refused, "process")
        ));
    }
    if lost > 0 {
        print_notice(format!(
            "{lost} events came too fast and are lost; --wait makes programs wait for them"
        ));
    }
    Ok(code::OK)
}

/// Returns a function that finds the path of one of the pool's directories by its id.
pub fn paths_of_directories(pool: &str) -> impl Fn(u64) -> Option<Vec<u8>> {
    let pool = Pool::open(pool).ok();
    move |id| {
        pool.as_ref()?
            .cluster()
            .namespace()
            .path_of(ObjectId(id))
            .ok()
    }
}
