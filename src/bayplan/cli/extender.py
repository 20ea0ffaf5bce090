"""`bayplan extender`: devices for an unchanged kube-scheduler."""

import click

from bayplan.cli.shell import BadInput, log_to_stderr

HELP = """Serve kube-scheduler as an HTTP extender that gives pods their devices, until interrupted.

It answers POST /filter, /prioritize, /preempt and /bind. Without --config it serves the device
classes that are known, AWS Neuron among them, and needs nothing of the cluster but its API.
`bayplan manifests extender` prints what kube-scheduler has to be told.

\b
Examples:
  bayplan extender
  bayplan extender --port 12345 --kubeconfig admin.conf
  bayplan extender --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
"""


@click.command(name="extender", help=HELP)
@click.option("--config", "config_file", metavar="FILE", help="A BayplanConfiguration.")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    envvar="PORT",
    help="For kube-scheduler, or $PORT.  [default: 12345]",
)
@click.option("--tls-cert", metavar="FILE", help="The certificate; with it, TLS.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--client-ca", metavar="FILE", help="Take clients with a certificate of it only.")
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--listen", metavar="[HOST]:PORT", help="For health and metrics.  [default: :10270]")
@click.option("--api", metavar="[HOST]:PORT", help="For questions.  [default: 127.0.0.1:10271]")
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def extender(
    config_file: str | None,
    kubeconfig: str | None,
    port: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
    check_config: bool,
    listen: str | None,
    api: str | None,
    verbose: bool,
) -> None:
    from msgspec.structs import replace

    from bayplan.core.engine.profile import ProfileError
    from bayplan.extender.service import Extender
    from bayplan.kube.credentials import CredentialsError
    from bayplan.kube.http import run as run_loop
    from bayplan.kube.transport import ApiError
    from bayplan.scheduler.config import ConfigError, Configuration, Tls, load
    from bayplan.scheduler.service import Options, serve
    from bayplan.web.server import BadAddress
    from bayplan.web.tls import BadTls

    log_to_stderr(verbose)
    if bool(tls_cert) != bool(tls_key) or (client_ca and not tls_cert):
        raise BadInput("--tls-cert and --tls-key go together, and --client-ca needs both")
    try:
        config = load(config_file) if config_file else Configuration()
        settings = config.extender
        if port is not None:
            settings = replace(settings, port=port)
        if tls_cert and tls_key:
            settings = replace(settings, tls=Tls(tls_cert, tls_key, client_ca or ""))
        if check_config:
            classes = ", ".join(config.vendors.classes)
            click.echo(f"{config_file or 'the default'} is valid: devices of {classes}")
            return
        given = {key: value for key, value in (("listen", listen), ("api", api)) if value}
        config = replace(config, extender=settings, **given)
        run_loop(serve(config, Options(kubeconfig=kubeconfig), Extender))
    except (ConfigError, ProfileError, CredentialsError, BadAddress, BadTls, ApiError) as error:
        raise BadInput(str(error)) from None
