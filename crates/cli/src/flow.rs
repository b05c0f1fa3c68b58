//! `forebay flow`: the workflow service, and the commands that send requests to it.

use crate::fail::{Fail, code};
use crate::files::user_name;
use crate::flow_args::{
    Approve, Delete, Executor, FlowCommand, Get, Init, Keep, List, Logs, OfFlow, OfRun, Reach,
    Serve, Start, Status, Token, Upload,
};
use crate::lifetime::Span;
use crate::output::{Stdout, count, json, note, print_notice, write};
use crate::tables::table;
use forebay_campaign::spec::Spec;
use forebay_flow::client::{Client, Settings};
use forebay_flow::config::Config;
use forebay_flow::serve::Listen;
use forebay_flow::token::Scope;
use forebay_flow::{account, api, keep, now, serve, token};
use forebay_media::format_size;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two checks of a run's state.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of checks, one per [`LOOK`], whether a workflow is removed.
const REMOVAL: u32 = 60;
/// Maximum number of files that one command uploads.
const MAX_UPLOADED_FILES: usize = 10_000;

pub fn flow(a: FlowCommand) -> Result<u8, Fail> {
    match a.what {
        OfFlow::Serve(a) => serve(&a)?,
        OfFlow::Token(a) => token(&a)?,
        OfFlow::Init(a) => init(&a)?,
        OfFlow::Upload(a) => upload(&a)?,
        OfFlow::Start(a) => start(&a)?,
        OfFlow::Status(a) => status(&a)?,
        OfFlow::List(a) => list(&a)?,
        OfFlow::Get(a) => get(&a)?,
        OfFlow::Logs(a) => logs(&a)?,
        OfFlow::Approve(a) => approve(&a)?,
        OfFlow::Cancel(a) => cancel(&a)?,
        OfFlow::Delete(a) => delete(&a)?,
        OfFlow::Openapi => json(&api::document())?,
        OfFlow::Keep(a) => return keep(a),
    }
    Ok(code::OK)
}

fn state(given: Option<&PathBuf>) -> PathBuf {
    if let Some(given) = given {
        return given.clone();
    }
    if account::is_root() {
        return "/var/lib/forebay/flow".into();
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let data = data.unwrap_or_else(|| home.join(".local/share"));
    data.join("forebay/flow")
}

/// Creates the state directory and its ancestors, and returns its path.
fn made(given: Option<&PathBuf>) -> Result<PathBuf, Fail> {
    let state = state(given);
    std::fs::create_dir_all(&state)
        .map_err(|e| Fail::failed(format!("{}: {e}", state.display())))?;
    Ok(state)
}

fn serve(a: &Serve) -> Result<(), Fail> {
    let config = Config::read(a.config.as_deref()).map_err(Fail::usage)?;
    let listen = Listen {
        at: a.listen,
        tls: a.tls_cert.clone().zip(a.tls_key.clone()),
    };
    let state = made(a.state.as_ref())?;
    let ready = |url: &str| print_notice(format!("flow: serves at {url}"));
    let tell = |what: &str| print_notice(format!("flow: {what}"));
    serve::serve(&state, config, &listen, &ready, tell).map_err(Fail::failed)
}

fn token(a: &Token) -> Result<(), Fail> {
    let state = made(a.state.as_ref())?;
    if let Some(id) = &a.revoke {
        token::revoke(&state, id).map_err(Fail::failed)?;
        print_notice(format!("the token '{id}' is refused from now on"));
        return Ok(());
    }
    if a.list {
        let mut rows = vec![
            ["ID", "USER", "SCOPES", "ENDS IN"]
                .map(String::from)
                .to_vec(),
        ];
        for t in token::list(&state).map_err(Fail::failed)? {
            let scopes: Vec<&str> = t.scopes.iter().map(|s| s.word()).collect();
            let left = match t.expires.saturating_sub(now()) {
                0 => "expired".into(),
                left => words(left),
            };
            rows.push(vec![t.id, t.user, scopes.join(","), left]);
        }
        return write(table(&rows, &[0, 1, 2, 3]).as_bytes());
    }
    let scopes = Scope::parse_list(&a.scope).map_err(Fail::usage)?;
    let Span::Of(seconds) = a.time else {
        return Err(Fail::usage("--for: a token has an end: give a time"));
    };
    let own = user_name(rustix::process::getuid().as_raw());
    let user = a.user.clone().unwrap_or_else(|| own.clone());
    if !account::is_root() && user != own {
        return Err(Fail::usage(format!(
            "--user: only a service of root serves others than '{own}'"
        )));
    }
    account::lookup(&user).map_err(Fail::usage)?;
    let (token, text) = token::make(&state, &user, &scopes, seconds).map_err(Fail::failed)?;
    note(format!(
        "a token of '{user}' for {}, with the id {}; it isn't shown again",
        words(seconds),
        token.id
    ));
    write(format!("{text}\n").as_bytes())
}

fn words(seconds: u64) -> String {
    forebay_campaign::service::words(seconds)
}

fn keep(a: Keep) -> Result<u8, Fail> {
    let mut plan = a.words;
    if plan.len() <= a.plan_words {
        return Err(Fail::usage("there is no command"));
    }
    let words = plan.split_off(a.plan_words);
    let kept = keep::Kept {
        dir: a.dir,
        work: a.work,
        attempt: a.attempt,
        slurm: a.slurm,
        plan,
        words,
    };
    keep::keep(&kept).map_err(Fail::failed)?;
    Ok(code::OK)
}

/// Returns a client for the service that options and environment name.
fn client(a: &Reach) -> Result<Client, Fail> {
    let Some(server) = a.server.clone().filter(|s| !s.is_empty()) else {
        return Err(Fail::usage(
            "which service? give --server https://HOST:PORT, or set FOREBAY_FLOW_SERVER",
        ));
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let token = match (&a.token_file, variable("FOREBAY_FLOW_TOKEN")) {
        (None, Some(token)) => token,
        (file, _) => {
            let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
            let home = PathBuf::from(variable("HOME").unwrap_or_default());
            let usual = config.unwrap_or_else(|| home.join(".config"));
            let file = file.clone().unwrap_or(usual.join("forebay/flow-token"));
            let text = untrusted::read_text(&file, Links::Named, MAX_SETTINGS).map_err(|e| {
                let shown = file.display();
                Fail::usage(format!(
                    "{shown}: {e}; put a token of `forebay flow token` there"
                ))
            })?;
            text.trim().to_owned()
        }
    };
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Fail::usage(
            "the token has characters that tokens don't have",
        ));
    }
    let ca = a.ca.clone().filter(|ca| !ca.as_os_str().is_empty());
    Client::new(&Settings { server, token, ca }).map_err(Fail::usage)
}

fn init(a: &Init) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let executor = match a.executor {
        Executor::Local => "local",
        Executor::Slurm => "slurm",
    };
    let path = ["workflows", a.workflow.as_str()];
    let is_there = client.get(&path, "").is_ok();
    let mut spec = a.spec.clone();
    if let (None, None, false, Some(file)) = (&a.campaign, &a.spec, is_there, &a.snakefile) {
        spec = of_rules(file)?;
        if let Some(spec) = &spec {
            note(format!("the rules ask for a campaign: {spec}"));
        }
    }
    let campaign = match (&a.campaign, &spec) {
        (None, None) => Value::Null,
        (name, spec) => json!({"name": name, "spec": spec}),
    };
    if is_there {
        if !campaign.is_null() || !a.approve.is_empty() {
            return Err(Fail::usage(format!(
                "there is a workflow '{}' already: its campaign and approvals stay as they are",
                a.workflow
            )));
        }
        if a.snakefile.is_none() {
            return Err(Fail::usage(format!(
                "there is a workflow '{}' already: give a Snakefile for its next run",
                a.workflow
            )));
        }
    } else {
        let new = json!({
            "name": a.workflow, "executor": executor, "approve": a.approve, "campaign": campaign,
        });
        client.create(&new).map_err(Fail::failed)?;
    }
    if let Some(snakefile) = &a.snakefile {
        client
            .upload(&a.workflow, "Snakefile", snakefile)
            .map_err(Fail::failed)?;
    }
    note(format!(
        "'{}' is ready: forebay flow start {}",
        a.workflow, a.workflow
    ));
    Ok(())
}

/// Returns the campaign that the rules of a Snakefile ask for; None if they ask for none. Fails if
/// they ask for several, since a workflow works in one.
fn of_rules(file: &Path) -> Result<Option<String>, Fail> {
    let shown = file.display();
    let text = untrusted::read_text(file, Links::Follow, MAX_SETTINGS)
        .map_err(|e| Fail::failed(format!("{shown}: {e}")))?;
    let all = forebay_flow::resources::campaigns(&text);
    for spec in &all {
        let in_file = |why| Fail::usage(format!("{shown}: campaign \"{spec}\": {why}"));
        Spec::parse(spec).map_err(in_file)?;
    }
    match &all[..] {
        [] => Ok(None),
        [spec] => Ok(Some(spec.clone())),
        _ => Err(Fail::usage(format!(
            "{shown}: its rules ask for {} campaigns ({}), and a workflow works in one: say which \
             with --spec",
            all.len(),
            all.join("; ")
        ))),
    }
}

fn upload(a: &Upload) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let mut all = Vec::new();
    for file in &a.files {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Fail::usage(format!("{}: no name", file.display())))?;
        let below = match &a.to {
            Some(to) => format!("{}/{name}", to.trim_end_matches('/')),
            None => name,
        };
        collect(file, &below, &mut all)?;
    }
    let files = count(all.len() as u64, "file");
    let are = if all.len() == 1 { "is" } else { "are" };
    for (file, path) in all {
        client
            .upload(&a.workflow, &path, &file)
            .map_err(|why| Fail::failed(format!("{path}: {why}")))?;
    }
    note(format!("{files} {are} uploaded to '{}'", a.workflow));
    Ok(())
}

/// Adds the files at and below a path to `all`, each with its path at the service.
fn collect(file: &Path, path: &str, all: &mut Vec<(PathBuf, String)>) -> Result<(), Fail> {
    let failed = |e: std::io::Error| Fail::failed(format!("{}: {e}", file.display()));
    if all.len() >= MAX_UPLOADED_FILES {
        return Err(Fail::usage(format!("more than {MAX_UPLOADED_FILES} files")));
    }
    if !std::fs::metadata(file).map_err(failed)?.is_dir() {
        all.push((file.to_owned(), path.to_owned()));
        return Ok(());
    }
    for entry in std::fs::read_dir(file).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        collect(&entry.path(), &format!("{path}/{name}"), all)?;
    }
    Ok(())
}

fn pairs(all: &[String]) -> Result<Value, Fail> {
    let mut map = serde_json::Map::new();
    for pair in all {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Fail::usage(format!("'{pair}' is no NAME=VALUE")))?;
        map.insert(name.to_owned(), value.into());
    }
    Ok(Value::Object(map))
}

fn start(a: &Start) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let parameters = json!({
        "jobs": a.jobs, "resources": pairs(&a.resource)?, "config": pairs(&a.values)?,
        "targets": a.targets, "keep_going": a.keep_going,
    });
    let mut run = client
        .start(&a.workflow, &parameters)
        .map_err(Fail::failed)?;
    let number = run["number"].to_string();
    if a.wait {
        let path = ["workflows", a.workflow.as_str(), "runs", &number];
        while matches!(run["state"].as_str(), Some("queued" | "running")) {
            std::thread::sleep(LOOK);
            run = client.get(&path, "").map_err(Fail::failed)?;
        }
    }
    if a.json {
        json(&run)?;
    } else {
        note(format!(
            "run {number} of '{}': {}",
            a.workflow,
            in_words(&run)
        ));
    }
    match run["state"].as_str() {
        Some("failed") => Err(Fail::failed(format!(
            "run {number} has failed: forebay flow logs {} {number}",
            a.workflow
        ))),
        Some("cancelled") => Err(Fail::failed(format!("run {number} was cancelled"))),
        _ => Ok(()),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("-")
}

/// Describes a run: the state, and the message if there is one.
fn in_words(run: &Value) -> String {
    match run["message"].as_str() {
        None | Some("") => text(run, "state").into(),
        Some(message) => format!("{}: {message}", text(run, "state")),
    }
}

fn ago(value: &Value) -> String {
    match value.as_u64() {
        Some(at) => format!("{} ago", words(now().saturating_sub(at))),
        None => "-".into(),
    }
}

fn status(a: &Status) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let ask = |parts: &[&str]| client.get(parts, "").map_err(Fail::failed);
    let Some(name) = &a.workflow else {
        let all = ask(&["workflows"])?;
        if a.json {
            return json(&all);
        }
        let mut rows = vec![
            ["NAME", "EXECUTOR", "CAMPAIGN", "RUN", "STATE", "BEGUN"]
                .map(String::from)
                .to_vec(),
        ];
        for w in all["workflows"].as_array().into_iter().flatten() {
            let run = &w["runs"][0];
            let number = run["number"].as_u64().map_or("-".into(), |n| n.to_string());
            rows.push(vec![
                text(w, "name").into(),
                text(w, "executor").into(),
                text(&w["campaign"], "name").into(),
                number,
                text(run, "state").into(),
                ago(&run["begun"]),
            ]);
        }
        return write(table(&rows, &[0, 1, 2, 3, 4, 5]).as_bytes());
    };
    if let Some(run) = a.run {
        let number = run.to_string();
        let run = ask(&["workflows", name, "runs", &number])?;
        let graph = ask(&["workflows", name, "runs", &number, "graph"])?;
        if a.json {
            return json(&json!({"run": run, "graph": graph}));
        }
        let mut rows = vec![
            vec!["state".into(), in_words(&run)],
            vec!["begun".into(), ago(&run["begun"])],
            vec!["ended".into(), ago(&run["ended"])],
            vec![
                "steps".into(),
                format!("{} of {}", graph["done"], graph["total"]),
            ],
        ];
        for job in graph["jobs"].as_array().into_iter().flatten() {
            let values = job["wildcards"].as_object().into_iter().flatten();
            let values: Vec<String> = values
                .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
                .collect();
            let what = format!("{} {}", text(job, "rule"), values.join(" "));
            rows.push(vec![text(job, "state").into(), what]);
        }
        return write(printable(&table(&rows, &[0, 1])).as_bytes());
    }
    let w = ask(&["workflows", name])?;
    if a.json {
        return json(&w);
    }
    let mut rows = vec![
        vec!["workflow".into(), text(&w, "name").into()],
        vec!["executor".into(), text(&w, "executor").into()],
    ];
    let campaign = &w["campaign"];
    if campaign.is_object() {
        let size = |v: &Value| v.as_u64().map_or("-".into(), format_size);
        let used = size(&campaign["usage"]["bytes"]);
        let what = format!(
            "{}: {used} of {}",
            text(campaign, "name"),
            size(&campaign["bytes"])
        );
        rows.push(vec!["campaign".into(), what]);
        rows.push(vec!["place".into(), text(campaign, "place").into()]);
    }
    for run in w["runs"].as_array().into_iter().flatten() {
        rows.push(vec![format!("run {}", run["number"]), in_words(run)]);
    }
    write(printable(&table(&rows, &[0, 1])).as_bytes())
}

/// Replaces control characters, except newlines, in text that others may have written.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    text.chars().map(shown).collect()
}

fn list(a: &List) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let path = ["workflows", a.workflow.as_str(), "files"];
    let found = client.get(&path, "").map_err(Fail::failed)?;
    if a.json {
        return json(&found);
    }
    let mut rows = Vec::new();
    for file in found["files"].as_array().into_iter().flatten() {
        let end = if file["kind"] == "directory" { "/" } else { "" };
        let size = format_size(file["size"].as_u64().unwrap_or(0));
        rows.push(vec![
            size,
            ago(&file["changed"]),
            format!("{}{end}", text(file, "path")),
        ]);
    }
    write(printable(&table(&rows, &[1, 2])).as_bytes())?;
    if found["is_complete"] == false {
        print_notice("there are more files, which aren't listed");
    }
    Ok(())
}

fn get(a: &Get) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let Some(to) = &a.to else {
        let mut out = Stdout::lock();
        return client
            .download(&a.workflow, &a.path, &mut out)
            .map_err(Fail::failed);
    };
    let failed = |e: std::io::Error| Fail::failed(format!("{}: {e}", to.display()));
    let beside = to.with_extension("forebay-part");
    let mut file = untrusted::create(&beside, 0o666).map_err(failed)?;
    let done = client.download(&a.workflow, &a.path, &mut file);
    if let Err(why) = done {
        let _ = std::fs::remove_file(&beside);
        return Err(Fail::failed(why));
    }
    std::fs::rename(&beside, to).map_err(failed)
}

/// Returns the number of a run as text: the given one, or that of the latest run.
fn number(client: &Client, workflow: &str, given: Option<u32>) -> Result<String, Fail> {
    if let Some(given) = given {
        return Ok(given.to_string());
    }
    let w = client
        .get(&["workflows", workflow], "")
        .map_err(Fail::failed)?;
    let last = w["runs"].as_array().and_then(|runs| runs.last());
    match last.and_then(|run| run["number"].as_u64()) {
        Some(number) => Ok(number.to_string()),
        None => Err(Fail::failed(format!(
            "'{workflow}' has no run: forebay flow start {workflow}"
        ))),
    }
}

fn logs(a: &Logs) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let number = number(&client, &a.workflow, a.run)?;
    let path = ["workflows", a.workflow.as_str(), "runs", &number, "log"];
    let mut from = 0;
    loop {
        let query = format!("?from={from}");
        let piece = client.get(&path, &query).map_err(Fail::failed)?;
        let shown = piece["text"].as_str().unwrap_or_default();
        write(shown.as_bytes())?;
        let next = piece["next"].as_u64().unwrap_or(from);
        let is_new = next > from;
        from = next;
        if piece["is_end"] == true || (!is_new && !a.follow) {
            return Ok(());
        }
        if !is_new {
            std::thread::sleep(LOOK);
        }
    }
}

fn approve(a: &Approve) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let number = number(&client, &a.workflow, a.run)?;
    client
        .act(&a.workflow, &number, Some(&a.rule))
        .map_err(Fail::failed)?;
    note(format!(
        "'{}' is approved for run {number} of '{}'",
        a.rule, a.workflow
    ));
    Ok(())
}

fn cancel(a: &OfRun) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    let number = number(&client, &a.workflow, a.run)?;
    client
        .act(&a.workflow, &number, None)
        .map_err(Fail::failed)?;
    note(format!(
        "run {number} of '{}' is being cancelled",
        a.workflow
    ));
    Ok(())
}

fn delete(a: &Delete) -> Result<(), Fail> {
    let client = client(&a.reach)?;
    for path in &a.paths {
        client
            .delete(&a.workflow, Some(path))
            .map_err(|why| Fail::failed(format!("{path}: {why}")))?;
    }
    if !a.paths.is_empty() {
        return Ok(());
    }
    client.delete(&a.workflow, None).map_err(Fail::failed)?;
    for _ in 0..REMOVAL {
        let left = client.get(&["workflows", &a.workflow], "");
        match left {
            Err(why) if why.contains("no such workflow") => {
                note(format!("'{}' is deleted", a.workflow));
                return Ok(());
            }
            Err(why) => return Err(Fail::failed(why)),
            Ok(_) => std::thread::sleep(LOOK / 4),
        }
    }
    print_notice(format!(
        "'{}' is still being deleted; see the service's messages",
        a.workflow
    ));
    Ok(())
}
