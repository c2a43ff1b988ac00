// JMS client with a transacted session: moves messages from one queue to another, with rollbacks in between.
import jakarta.jms.*;
import org.apache.qpid.jms.JmsConnectionFactory;

public class Transacted {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], from = arguments[1], to = arguments[2];
        int batch = Integer.parseInt(arguments[3]);
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            MessageProducer producer = session.createProducer(session.createQueue(to));
            connection.start();
            int redelivered = 0, rollbacks = 0, failed = 0;
            for (int turn = 0; ; turn++) {
                int held = 0;
                try {
                    for (; held < batch; held++) {
                        TextMessage message = (TextMessage) consumer.receive(5000);
                        if (message == null)
                            break;
                        if (message.getJMSRedelivered())
                            redelivered++;
                        producer.send(session.createTextMessage(message.getText()));
                    }
                    if (held == 0)
                        break;
                    if (turn % 3 == 1) {
                        session.rollback();
                        rollbacks++;
                    } else {
                        System.out.println("commits");
                        session.commit();
                    }
                } catch (JMSException error) { // the gateway was killed: the transaction is rolled back, or in doubt
                    failed++;
                }
            }
            producer.send(session.createTextMessage("never committed"));
            System.out.println("ended " + redelivered + " " + rollbacks + " " + failed);
        }
    }
}
