"""`bayplan elastic`: the controller of elastic jobs."""

import click

from bayplan.cli.shell import BadInput, log_to_stderr

HELP = """Run elastic jobs: choose how many workers each has, and make and remove them.

It serves ElasticJobs and Alnair's ElasticHorovodJobs (`bayplan manifests crds`) together with a
Bayplan scheduler, which keeps places for workers before they are made.

\b
Examples:
  bayplan elastic
  bayplan elastic --config elastic.yaml --kubeconfig admin.conf
  bayplan elastic --config elastic.yaml --check-config
  bayplan elastic --dry-run
"""


@click.command(name="elastic", help=HELP)
@click.option("--config", "config_file", metavar="FILE", help="A BayplanElasticConfiguration.")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster.")
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done now, and exit.")
@click.option("--listen", metavar="[HOST]:PORT", help="For health and metrics.  [default: :10273]")
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def elastic(
    config_file: str | None,
    kubeconfig: str | None,
    check_config: bool,
    dry_run: bool,
    listen: str | None,
    verbose: bool,
) -> None:
    from msgspec.structs import replace

    from bayplan.elastic.config import BadConfig, Configuration, load
    from bayplan.elastic.service import foresee, serve
    from bayplan.kube.credentials import CredentialsError
    from bayplan.kube.http import run as run_loop
    from bayplan.kube.transport import ApiError, TransportError
    from bayplan.web.server import BadAddress

    log_to_stderr(verbose)
    try:
        config = load(config_file) if config_file else Configuration()
        if listen:
            config = replace(config, listen=listen)
        if check_config:
            click.echo(f"{config_file or 'the default'} is valid: allocator {config.allocator}")
            return
        if dry_run:
            steps = run_loop(foresee(config, kubeconfig))
            click.echo("\n".join(steps) or "nothing is to be done")
            return
        run_loop(serve(config, kubeconfig))
    except (BadConfig, CredentialsError, BadAddress, ApiError, TransportError) as error:
        raise BadInput(str(error)) from None
