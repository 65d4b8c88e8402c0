//! Suggests a command or option for one that does not exist.

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;

/// Words of other lock commands, with what does that here.
const COMMANDS: [(&str, &str); 4] = [
    ("lock", "`leasehold run` runs a command under a lock; `hold` and `acquire` take one"),
    (
        "unlock",
        "`leasehold release` ends a lease of `acquire` or `hold`; `force-release` ends one \
                of another holder",
    ),
    ("list", "`leasehold ls` lists the locks in use"),
    ("status", "`leasehold show KEY` shows a lock"),
];

/// Replaces the tips of an error that lead nowhere.
pub(crate) fn correct(error: &mut clap::Error) {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = text(error, ContextKind::InvalidSubcommand);
            if let Some((_, hint)) = COMMANDS.iter().find(|(word, _)| *word == typed) {
                error.remove(ContextKind::SuggestedSubcommand);
                tip(error, hint);
            }
        }
        ErrorKind::UnknownArgument => {
            if hidden().contains(&text(error, ContextKind::SuggestedArg)) {
                error.remove(ContextKind::SuggestedArg);
            }
            let typed = text(error, ContextKind::InvalidArg);
            if typed.starts_with('-') && !typed.starts_with("--") {
                tip(error, "the name of a lock that begins with `-` stands behind `--`");
            }
        }
        _ => {}
    }
}

fn tip(error: &mut clap::Error, hint: &str) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.to_owned().into()]));
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

/// The options that are known and in no help.
fn hidden() -> Vec<String> {
    let whole = Cli::command();
    let options = whole.get_subcommands().flat_map(clap::Command::get_arguments);
    let names = options.flat_map(|option| {
        let all = option.get_all_aliases().unwrap_or_default();
        let shown = option.get_visible_aliases().unwrap_or_default();
        all.into_iter().filter(move |name| !shown.contains(name))
    });
    names.map(|name| format!("--{name}")).collect()
}
