//! From text to rules.

use super::decision::Decision;
use super::error::{PolicyError, Position, Problems};
use super::pattern::{Pattern, Subject};
use super::reader::{self, Fields};
use super::settings::{self, Settings};
use super::yaml::{self, Node, Value};
use super::{Match, Policy, Rule};

/// More rules than a person can oversee; each is tried in turn for each new mount.
const MAX_RULES: usize = 256;

/// Reads the whole text and notes everything that is wrong with it.
pub(super) fn read(text: &str, name: &str) -> Result<Policy, PolicyError> {
    let mut problems = Problems::default();
    let mut policy = Policy::builtin();
    match yaml::parse(text) {
        Err(problem) => problems.add(problem.at, problem.message),
        Ok(None | Some(Node { value: Value::Null, .. })) => {
            let start = Position { line: 1, column: 1 };
            problems.add(start, "the policy is empty; to observe everything, write rules: []");
        }
        Ok(Some(node)) => policy = document(&node, &mut problems),
    }
    problems.into_result(policy, name)
}

fn document(node: &Node, problems: &mut Problems) -> Policy {
    let mut policy = Policy::builtin();
    let Some(fields) = Fields::of(node, "the policy", &["defaults", "rules"], problems) else {
        return policy;
    };
    if let Some(node) = fields.get("defaults")
        && let Some(fields) = Fields::of(node, "defaults", &settings::KEYS, problems)
    {
        policy.defaults = Settings::read(&fields, problems).resolve(&policy.defaults, node.at, problems);
    }
    match fields.get("rules").map(|node| (node.at, &node.value)) {
        None => {}
        Some((_, Value::Sequence(rules))) => policy.rules = read_rules(rules, &policy.defaults, problems),
        Some((at, other)) => problems.add(at, format!("rules must be a list, found {}", other.describe())),
    }
    policy
}

fn read_rules(nodes: &[Node], defaults: &Decision, problems: &mut Problems) -> Vec<Rule> {
    if let Some(node) = nodes.get(MAX_RULES) {
        problems.add(node.at, format!("more than {MAX_RULES} rules"));
    }
    let mut rules: Vec<(Position, Rule)> = Vec::new();
    for (index, node) in nodes.iter().enumerate().take(MAX_RULES) {
        let Some(rule) = read_rule(node, index + 1, defaults, problems) else { continue };
        if let Some((first, _)) = rules.iter().find(|(_, earlier)| earlier.matches.covers(&rule.matches)) {
            let message =
                format!("this rule never applies: the one on line {} matches all that it matches", first.line);
            problems.add(node.at, message);
        }
        rules.push((node.at, rule));
    }
    rules.into_iter().map(|(_, rule)| rule).collect()
}

fn read_rule(node: &Node, number: usize, defaults: &Decision, problems: &mut Problems) -> Option<Rule> {
    let mut known = vec!["match"];
    known.extend(settings::KEYS);
    let fields = Fields::of(node, "a rule", &known, problems)?;
    let inherited = Decision { rule: Some(number), ..defaults.clone() };
    let decision = Settings::read(&fields, problems).resolve(&inherited, node.at, problems);
    match fields.get("match") {
        Some(node) => Some(Rule { matches: read_match(node, problems)?, decision }),
        None => {
            problems.add(node.at, "a rule needs a match: { mountPoint: …, fsType: …, source: … }");
            None
        }
    }
}

fn read_match(node: &Node, problems: &mut Problems) -> Option<Match> {
    let keys = [("mountPoint", Subject::MountPoint), ("fsType", Subject::FsType), ("source", Subject::Source)];
    let fields = Fields::of(node, "match", &keys.map(|(key, _)| key), problems)?;
    if fields.is_empty() {
        problems.add(node.at, "match names nothing; for every mount, write mountPoint: \"**\"");
        return None;
    }
    let mut complete = true;
    let [mount_point, fs_type, source] = keys.map(|(key, subject)| {
        let node = fields.get(key)?;
        let pattern = reader::text(key, node, problems).and_then(|text| {
            Pattern::new(text, subject).map_err(|message| problems.add(node.at, format!("{key}: {message}"))).ok()
        });
        complete &= pattern.is_some();
        pattern
    });
    complete.then_some(Match { mount_point, fs_type, source })
}
