"""`bayplan run`: the standalone scheduler."""

import click

from bayplan.cli.shell import BadInput, log_to_stderr

HELP = """Run the scheduler for the profiles of the configuration, until it is interrupted.

Without --kubeconfig it uses the service account of its pod, else $KUBECONFIG, else ~/.kube/config.
Without --config there are the profiles that `bayplan manifests deployment` shows.

\b
Examples:
  bayplan run
  bayplan run --config bayplan.yaml --check-config
  bayplan run --kubeconfig admin.conf --dry-run
"""


@click.command(name="run", help=HELP)
@click.option("--config", "config_file", metavar="FILE", help="A BayplanConfiguration.")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster.")
@click.option("--dry-run", is_flag=True, help="Decide for every pod, bind none, tell differences.")
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--listen", metavar="[HOST]:PORT", help="For health and metrics.  [default: :10270]")
@click.option("--api", metavar="[HOST]:PORT", help="For questions.  [default: 127.0.0.1:10271]")
@click.option("--api-token", metavar="FILE", help="What clients of --api must know.")
@click.option("--api-cert", metavar="FILE", help="The certificate of --api; with it, TLS.")
@click.option("--api-key", metavar="FILE", help="Its key.")
@click.option("--api-client-ca", metavar="FILE", help="Take clients with a certificate of it.")
@click.option(
    "--questions",
    type=click.Choice(["apart", "inline"]),
    help="Who answers large questions: a copy of the process, or itself.  [default: apart]",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def run(
    config_file: str | None,
    kubeconfig: str | None,
    dry_run: bool,
    check_config: bool,
    listen: str | None,
    api: str | None,
    api_token: str | None,
    api_cert: str | None,
    api_key: str | None,
    api_client_ca: str | None,
    questions: str | None,
    verbose: bool,
) -> None:
    from msgspec.structs import replace

    from bayplan.core.engine.profile import ProfileError
    from bayplan.kube.credentials import CredentialsError
    from bayplan.kube.http import run as run_loop
    from bayplan.kube.transport import ApiError
    from bayplan.scheduler.config import (
        ApiAccess,
        ConfigError,
        Configuration,
        Tls,
        load,
        profiles_of,
    )
    from bayplan.scheduler.service import Options, serve
    from bayplan.web.server import BadAddress

    log_to_stderr(verbose)
    if bool(api_cert) != bool(api_key) or (api_client_ca and not api_cert):
        raise BadInput("--api-cert and --api-key go together, and --api-client-ca needs both")
    try:
        config = load(config_file) if config_file else Configuration()
        names = [profile.name for profile in profiles_of(config)]
        if check_config:
            click.echo(f"{config_file or 'the default'} is valid: {', '.join(names)}")
            return
        options = (("listen", listen), ("api", api), ("questions", questions))
        given = {key: value for key, value in options if value}
        access = config.api_access
        tls = Tls(api_cert, api_key, api_client_ca or "") if api_cert and api_key else access.tls
        config = replace(config, api_access=ApiAccess(api_token or access.token_file, tls))
        run_loop(serve(replace(config, **given), Options(kubeconfig, dry_run=dry_run)))
    except (ConfigError, ProfileError, CredentialsError, BadAddress, ApiError) as error:
        raise BadInput(str(error)) from None
