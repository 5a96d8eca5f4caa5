use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn subject<'a>(mount_point: &'a str, fs_type: &'a str, source: &'a str) -> Subject<'a> {
    Subject { mount_point: Path::new(mount_point), fs_type, source: OsStr::new(source) }
}

fn policy(text: &str) -> Policy {
    Policy::parse(text, "policy.yaml").unwrap_or_else(|error| panic!("{error}"))
}

/// The problems, each as `line:column: message`.
fn problems(text: &str) -> Vec<String> {
    let error = Policy::parse(text, "policy.yaml").expect_err("accepted");
    let shown = error.to_string();
    shown.lines().map(|line| line.strip_prefix("policy.yaml:").expect("begins with the name").to_owned()).collect()
}

/// The rule of a policy with one rule that holds these keys.
fn rule(keys: &str) -> String {
    format!("rules:\n  - match: {{ mountPoint: /mnt/** }}\n    {keys}\n")
}

const FULL: &str = r#"
defaults: { mode: observe, hungAfter: 30s }
rules:
  - match: { mountPoint: /var/lib/kubelet/**, fsType: fuse* }
    mode: heal
    strategy: auto
    access: any
    onHung: report
    backoff: { initial: 200ms, max: 30s, giveUpAfter: 15m }
  - match:
      source: "s3://**"
    mode: heal
    strategy: command
    command: [systemctl, restart, s3.service, 5]
    commandTimeout: 1m30s
    access: readOnly
    onAbort: heal
    hungAfter: 1h30m
    backoff: { max: 1m }
  - match: { fsType: fuse.sshfs }
    mode: ignore
"#;

#[test]
fn every_key_is_read() {
    let policy = policy(FULL);
    assert_eq!(policy.rule_count(), 3);
    let first = policy.decide(&subject("/var/lib/kubelet/pods/1/mount", "fuse.juicefs", "x"));
    assert_eq!((first.rule, first.mode, &first.strategy), (Some(1), Mode::Heal, &StrategyChoice::Auto));
    let second = policy.decide(&subject("/mnt/s3", "fuse", "s3://bucket/a/b"));
    let argv = ["systemctl", "restart", "s3.service", "5"].map(Into::into).to_vec();
    let expected = Decision {
        rule: Some(2),
        mode: Mode::Heal,
        strategy: StrategyChoice::Command(Command { argv, timeout: Duration::from_secs(90) }),
        access: Access::ReadOnly,
        on_hung: OnHung::Report,
        on_abort: OnAbort::Heal,
        hung_after: Duration::from_secs(90 * 60),
        backoff: Backoff { max: Duration::from_secs(60), ..Policy::builtin().defaults.backoff },
    };
    assert_eq!(second, &expected);
    assert_eq!(policy.decide(&subject("/home/a", "fuse.sshfs", "h:/")).mode, Mode::Ignore);
    assert_eq!(policy.decide(&subject("/home/a", "fuse", "h:/")).rule, None);
}

#[test]
fn without_a_file_everything_is_observed() {
    let policy = Policy::builtin();
    let decision = policy.decide(&subject("/mnt", "fuse", ""));
    assert_eq!((decision.rule, decision.mode, decision.on_abort), (None, Mode::Observe, OnAbort::Report));
    assert_eq!(self::policy("rules: []").decide(&subject("/mnt", "fuse", "")), decision);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(concat!(
        "rules:\n",
        "- { match: { mountPoint: /mnt/a, fsType: fuse.x }, mode: ignore }\n",
        "- { match: { mountPoint: /mnt/* }, mode: heal }\n",
    ));
    assert_eq!(policy.decide(&subject("/mnt/a", "fuse.x", "")).rule, Some(1));
    assert_eq!(policy.decide(&subject("/mnt/a", "fuse.y", "")).rule, Some(2));
    assert_eq!(policy.decide(&subject("/mnt/a/b", "fuse.x", "")).rule, None);
}

#[test]
fn what_a_rule_omits_comes_from_the_defaults() {
    let policy = policy(concat!(
        "defaults: { mode: heal, strategy: command, command: [remount], commandTimeout: 5s, onAbort: heal,",
        " backoff: { initial: 1s } }\n",
        "rules:\n",
        "- { match: { mountPoint: /a }, commandTimeout: 7s, backoff: { max: 9s } }\n",
        "- { match: { mountPoint: /b }, strategy: respawn }\n",
    ));
    let a = policy.decide(&subject("/a", "fuse", ""));
    let command = Command { argv: vec!["remount".into()], timeout: Duration::from_secs(7) };
    assert_eq!((a.mode, a.on_abort, &a.strategy), (Mode::Heal, OnAbort::Heal, &StrategyChoice::Command(command)));
    assert_eq!((a.backoff.initial, a.backoff.max), (Duration::from_secs(1), Duration::from_secs(9)));
    assert_eq!(policy.decide(&subject("/b", "fuse", "")).strategy, StrategyChoice::Respawn);
}

#[test]
fn globs_match_paths_by_component_and_any_bytes() {
    let matches = |pattern: &str, path: &[u8]| {
        let policy = policy(&format!("rules: [{{ match: {{ mountPoint: '{pattern}' }} }}]"));
        let mount_point = Path::new(OsStr::from_bytes(path));
        policy.decide(&Subject { mount_point, fs_type: "fuse", source: OsStr::new("") }).rule.is_some()
    };
    assert!(matches("/mnt/*", b"/mnt/a b\n\xff"));
    assert!(!matches("/mnt/*", b"/mnt/a/b"));
    assert!(matches("/mnt/**", b"/mnt/a/b"));
    assert!(!matches("/mnt/**", b"/mnt"));
    assert!(matches("/mnt/**/x", b"/mnt/x"));
    assert!(matches("/mnt/{a,b}/[0-9]", b"/mnt/b/7"));
    assert!(matches(r"/mnt/\*", b"/mnt/*"));
    assert!(!matches(r"/mnt/\*", b"/mnt/a"));
    assert!(matches("**", b"/"));
    assert!(matches("/mnt/?", b"/mnt/a"));
    assert!(matches("/mnt/??", "/mnt/ä".as_bytes()), "? is a byte");
}

#[test]
fn every_problem_is_reported_with_its_place() {
    let text = concat!(
        "defaults:\n",
        "  mode: heel\n",
        "  hungAfter: 30\n",
        "  hung_after: 30s\n",
        "rules:\n",
        "  - match: { mountPoint: mnt/a, colour: red }\n",
        "    strategy: csi\n",
        "    onHung: abbort\n",
        "  - mode: heal\n",
        "  - match: {}\n",
        "version: 1\n",
    );
    assert_eq!(
        problems(text),
        [
            "2:9: unknown mode \"heel\"; did you mean heal?",
            "3:14: hungAfter must be a duration with a unit, such as 200ms, 30s, 15m or 1h30m; found \"30\"",
            "4:3: unknown key \"hung_after\"; did you mean hungAfter?",
            "6:26: mountPoint: \"mnt/a\" never matches: a mount point is an absolute path",
            "6:33: unknown key \"colour\"; known: mountPoint, fsType, source",
            "7:15: strategy csi is not available in this version; available: auto, rebind, respawn, command",
            "8:13: unknown onHung \"abbort\"; did you mean abort?",
            "9:5: a rule needs a match: { mountPoint: …, fsType: …, source: … }",
            "10:12: match names nothing; for every mount, write mountPoint: \"**\"",
            "11:1: unknown key \"version\"; known: defaults, rules",
        ]
    );
}

/// One line, and what it is refused for.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let problems = problems(text);
    assert!(problems.len() == 1 && problems[0].contains(expected), "{text:?} gave {problems:#?}");
}

#[test]
fn wrong_types_are_refused() {
    refused("[]", "1:1: the policy must be a mapping, found a list");
    refused("rules: {}", "1:8: rules must be a list, found a mapping");
    refused("rules:", "rules must be a list, found nothing");
    refused("rules: [heal]", "1:9: a rule must be a mapping, found a plain value");
    refused("defaults: { mode: [heal] }", "1:19: mode must be one of observe, heal, ignore; found a list");
    refused("defaults: { mode: ~ }", "found nothing");
    refused("defaults: { backoff: 3s }", "backoff must be a mapping");
    refused("rules: [{ match: { mountPoint: [a] } }]", "mountPoint must be text, found a list");
    refused("rules: [{ match: { mountPoint: '' } }]", "mountPoint must not be empty");
    refused("defaults: { strategy: command, command: mount -a }", "command must be a list");
    refused("defaults: { strategy: command, command: [a, [b]] }", "1:45: an argument must be text, found a list");
    refused("defaults: { strategy: command, command: [] }", "command names no program");
    refused("defaults: { strategy: command, command: [\"a\\0b\"] }", "zero byte");
    refused("{ [a]: b }", "a key must be a name");
}

#[test]
fn durations_have_units_and_bounds() {
    for (bad, why) in [
        ("-5s", "with a unit"),
        ("0s", "longer than zero"),
        ("31d", "with a unit"),
        ("721h", "not be longer than 30 days"),
        ("999999999999999h", "not be longer than 30 days"),
        ("99999999999999999999h", "with a unit"),
        ("soon", "with a unit"),
    ] {
        refused(&format!("defaults: {{ hungAfter: {bad} }}"), why);
    }
    for (good, seconds) in [("200ms", 0.2), ("30s", 30.0), ("15m", 900.0), ("1h30m", 5400.0)] {
        let decision = policy(&format!("defaults: {{ hungAfter: {good} }}")).defaults;
        assert_eq!(decision.hung_after, Duration::from_secs_f64(seconds), "{good}");
    }
}

#[test]
fn contradictions_are_refused() {
    refused(&rule("strategy: command"), "3:15: strategy: command needs a command");
    refused(&rule("command: [a]"), "3:14: command has no effect here");
    refused(&rule("commandTimeout: 3s"), "3:21: commandTimeout has no effect here");
    refused(&rule("backoff: { initial: 2m }"), "initial (120s) is longer than max (30s)");
    refused(&rule("backoff: { giveUpAfter: 100ms }"), "giveUpAfter (100ms) is shorter than initial (200ms)");
    refused(
        "rules: [{ match: { mountPoint: /a, mountPoint: /b } }]",
        "1:36: mountPoint is given twice, first on line 1",
    );
    refused("rules: []\nrules: []", "2:1: rules is given twice, first on line 1");
}

#[test]
fn a_wrong_value_is_complained_about_once() {
    refused(&rule("{ strategy: respwan, command: [a] }").replace("\n    {", "\n    x: {"), "unknown key");
    refused("defaults: { strategy: commnad, command: [a] }", "did you mean command?");
    refused("defaults: { strategy: command, command: a }", "command must be a list");
}

#[test]
fn bad_globs_are_refused() {
    for (pattern, why) in [
        ("/mnt/[a", "no valid pattern"),
        ("/mnt/{a", "no valid pattern"),
        ("/mnt/[z-a]", "no valid pattern"),
        ("/mnt/a**", "** must stand between slashes"),
        ("/mnt/", "no slash at its end"),
        ("*", "which only ** crosses"),
    ] {
        refused(&format!("rules: [{{ match: {{ mountPoint: '{pattern}' }} }}]"), why);
    }
    refused("rules: [{ match: { fsType: nfs } }]", "only fuse, fuse.SUBTYPE and fuseblk are watched");
    refused(&format!("rules: [{{ match: {{ source: '{}' }} }}]", "a".repeat(5000)), "longer than 4096 bytes");
}

/// Whether the second rule is refused as one that never applies.
fn shadowed(first: &str, second: &str) -> bool {
    let text = format!("rules:\n- {{ match: {{ {first} }} }}\n- {{ match: {{ {second} }} }}\n");
    match Policy::parse(&text, "p") {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().starts_with("p:3:3: this rule never applies: the one on line 2"), "{error}");
            true
        }
    }
}

#[test]
fn a_rule_behind_a_wider_one_is_refused() {
    assert!(shadowed("mountPoint: /a", "mountPoint: /a"));
    assert!(shadowed("mountPoint: '**'", "fsType: fuse.x"));
    assert!(shadowed("fsType: 'fuse*'", "mountPoint: /a"));
    assert!(shadowed("mountPoint: /var/**", "mountPoint: /var/lib/**, fsType: fuse"));
    assert!(shadowed("mountPoint: /var/*", "mountPoint: /var/a"));
    assert!(!shadowed("mountPoint: /var/a", "mountPoint: /var/*"));
    assert!(!shadowed("mountPoint: /var/**, fsType: fuse", "mountPoint: /var/a"));
    assert!(!shadowed("mountPoint: /var/**", "mountPoint: /variable/a"));
    assert!(!shadowed("mountPoint: /var/**", "mountPoint: /var"));
    assert!(shadowed("mountPoint: /**", "mountPoint: /"), "/** begins at the root itself");
}

#[test]
fn yaml_that_a_policy_does_not_need_is_refused() {
    refused("a: &x [1]\nb: *x", "anchors (&) and aliases (*) are not supported");
    refused("rules: &x []", "anchors (&) and aliases (*) are not supported");
    refused("rules: !!seq []", "tags (!) are not supported");
    refused("rules: []\n---\nrules: []", "a second document");
    refused("", "the policy is empty");
    refused("# nothing\n", "the policy is empty");
    refused("rules: [", "not YAML");
    refused("rules:\n\t- a", "not YAML");
    refused(&format!("{}{}", "[".repeat(100), "]".repeat(100)), "1:18: nested too deeply");
    refused(&"[".repeat(1000), "not YAML");
}

#[test]
fn hostile_texts_are_refused_in_no_time() {
    const SIZE: usize = MAX_BYTES;
    let bomb = format!("a: &a [x,x]\n{}", "b: &b [*a,*a,*a,*a]\n".repeat(SIZE / 20));
    let rules = format!("rules:\n{}", "- {match: {mountPoint: /a}}\n".repeat(SIZE / 28));
    let keys = format!("rules:\n{}", "? ".repeat(SIZE / 2 - 8));
    let braces = format!("rules: [{{ match: {{ source: '{}' }} }}]", "{**/".repeat(1000));
    for text in [bomb, rules, keys, braces, "[".repeat(SIZE), "{a: ".repeat(SIZE / 4), "- ".repeat(SIZE / 2)] {
        let start = Instant::now();
        let error = Policy::parse(&text, "policy.yaml").expect_err("accepted");
        assert!(error.to_string().len() < 100_000, "an endless message");
        // Milliseconds; generous, because the machine that runs the tests may be busy.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?} for {:?}…", start.elapsed(), &text[..40]);
    }
}

#[test]
fn files_that_are_no_policy_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    assert!(Policy::load(&write("good", b"rules: []")).is_ok());
    let missing = Policy::load(&directory.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("missing: can't read the policy: No such file"), "{missing}");
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    for special in [directory.path(), &fifo, Path::new("/dev/zero")] {
        let refused = Policy::load(special).unwrap_err().to_string();
        assert!(refused.contains(": not a regular file"), "{refused}");
    }
    let large = Policy::load(&write("large", &vec![b'#'; (1 << 20) + 1]));
    assert!(matches!(large, Err(PolicyError::TooLarge { .. })), "{large:?}");
    // As the kubelet lays out a ConfigMap: a link to a file behind a link to a directory.
    std::fs::create_dir(directory.path().join("..2026")).unwrap();
    write("..2026/policy.yaml", b"rules: []");
    std::os::unix::fs::symlink("..2026", directory.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/policy.yaml", directory.path().join("policy.yaml")).unwrap();
    assert!(Policy::load(&directory.path().join("policy.yaml")).is_ok());
    let binary = Policy::load(&write("binary", b"rules: []\n# \xff\n"));
    assert!(matches!(binary, Err(PolicyError::NotText { line: 2, .. })), "{binary:?}");
}

#[test]
fn many_problems_are_cut_short() {
    let text = format!("rules:\n{}", "- { mode: x }\n".repeat(200));
    let shown = Policy::parse(&text, "p").unwrap_err().to_string();
    assert_eq!(shown.lines().count(), 51);
    assert!(shown.ends_with("p: and 350 more"), "{shown}");
}

/// Text that is nearly a policy, so that it reaches beyond the YAML.
fn nearly() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "defaults",
        "rules",
        "match",
        "mountPoint",
        "fsType",
        "source",
        "mode",
        "heal",
        "strategy",
        "command",
        "backoff",
        "initial",
        "max",
        "giveUpAfter",
        "hungAfter",
        "30s",
        "-1s",
        "/mnt/**",
        "**",
        "{a,b",
        "[x",
        "fuse*",
        ": ",
        ", ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "{ ",
        " }",
        "[",
        "]",
        "'",
        "\"",
        "#",
        "|\n",
        ">\n",
        "? ",
        "&a ",
        "*a",
        "!t ",
        "---\n",
        "%",
        "\u{feff}",
        "\0",
        "ä",
    ]);
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![any::<String>(), nearly()]) {
        match Policy::parse(&text, "p") {
            Ok(policy) => { policy.decide(&subject("/mnt", "fuse", "")); }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_pattern_compiles_or_is_refused(text in "[/a*?{},\\[\\]!\\\\ä-]{0,40}") {
        for subject in [pattern::Subject::MountPoint, pattern::Subject::FsType, pattern::Subject::Source] {
            if let Ok(pattern) = Pattern::new(&text, subject) {
                pattern.matches(OsStr::new(&text));
                prop_assert!(pattern.covers(&pattern, subject));
            }
        }
    }

    /// What is said to be covered is.
    #[test]
    fn covering_is_sound(wide in "/[a/]{0,3}\\*{0,2}", narrow in "/[a/]{0,4}(\\*|\\*\\*)?", path in "(/a{1,2}){1,4}") {
        let new = |text: &str| Pattern::new(text, pattern::Subject::MountPoint);
        if let (Ok(wide), Ok(narrow)) = (new(&wide), new(&narrow))
            && wide.covers(&narrow, pattern::Subject::MountPoint)
            && narrow.matches(OsStr::new(&path))
        {
            prop_assert!(wide.matches(OsStr::new(&path)), "{wide:?} {narrow:?}");
        }
    }

    #[test]
    fn deciding_is_total(
        mount_point in prop::collection::vec(any::<u8>(), 0..40),
        fs_type in any::<String>(),
        source in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let policy = policy(FULL);
        let subject = Subject {
            mount_point: Path::new(OsStr::from_bytes(&mount_point)),
            fs_type: &fs_type,
            source: OsStr::from_bytes(&source),
        };
        prop_assert!(policy.decide(&subject).rule.is_none_or(|rule| rule <= 3));
    }
}

#[test]
fn the_references_example_and_table_are_true() {
    let reference = include_str!("../../../docs/policy.md");
    let example = reference.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    assert_eq!(policy(example).rule_count(), 3);
    for key in settings::KEYS.iter().filter(|key| **key != "backoff") {
        assert!(reference.contains(&format!("| `{key}` |")), "{key} is not in the reference");
    }
    let builtin = concat!(
        "defaults: { mode: observe, strategy: auto, access: any, onHung: report, onAbort: report, hungAfter: 30s,",
        " backoff: { initial: 200ms, max: 30s, giveUpAfter: 15m } }",
    );
    assert_eq!(policy(builtin).defaults, Policy::builtin().defaults);
}
