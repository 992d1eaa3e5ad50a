# saccade on a CPU: `docker build -t saccade .`, then `docker run -p 127.0.0.1:8000:8000 -e SACCADE_TOKEN=secret saccade`.
FROM python:3.12-slim

RUN useradd --create-home saccade
WORKDIR /home/saccade/source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY saccade ./saccade
COPY saccade_worlds ./saccade_worlds
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[serve]'

USER saccade
WORKDIR /home/saccade
EXPOSE 8000
# Inside a container 127.0.0.1 is the container itself, so it listens at all addresses, for which it wants SACCADE_TOKEN.
ENTRYPOINT ["saccade", "serve"]
CMD ["--host", "0.0.0.0"]
